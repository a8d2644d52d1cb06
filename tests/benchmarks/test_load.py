"""The load generator: what it asks for, and what it says of the answers."""

from collections import Counter

import numpy as np
import pytest

from benchmarks.serving.load import Answer, make_jobs, parse, percentile, report


def jobs(*flags):
    return make_jobs(parse(["--model", "base", *flags]))


def test_equal_seeds_give_equal_load_and_others_do_not():
    assert jobs("--seed", "3") == jobs("--seed", "3") != jobs("--seed", "4")


def test_popularity_is_that_of_the_law():
    counts = Counter(job.model for job in jobs("--adapters", "a,b,c", "--zipf", "1", "--requests", "8000"))
    total = 1 + 1 / 2 + 1 / 3 + 1 / 4
    for rank, name in enumerate(("base", "a", "b", "c"), 1):
        assert counts[name] / 8000 == pytest.approx(1 / rank / total, rel=0.1)


def test_prompts_share_the_prefix_and_lengths_have_their_median():
    made = jobs("--shared-prefix", "9", "--prompt-tokens", "50", "--output-tokens", "20", "--requests", "2000")
    assert len({tuple(job.prompt[:9]) for job in made}) == 1
    assert np.median([len(job.prompt) - 9 for job in made]) == pytest.approx(50, rel=0.1)
    assert np.median([job.max_tokens for job in made]) == pytest.approx(20, rel=0.1)
    assert {job.max_tokens for job in jobs("--sigma", "0", "--output-tokens", "7")} == {7}


@pytest.mark.parametrize("share", [1, 50, 90, 99, 100])
def test_percentiles_are_the_inverse_of_the_distribution(share):
    values = np.random.default_rng(0).normal(size=37).tolist()
    assert percentile(values, share) == np.percentile(values, share, method="inverted_cdf")


def test_goodput_counts_what_kept_both_limits():
    answers = [Answer(0.1, 0.01, 5), Answer(0.6, 0.01, 5), Answer(0.1, 0.06, 5), Answer(error="500: no")]
    figures = report(answers, 2.0, parse(["--model", "base"]))
    assert (figures["failed"], figures["requests/s"], figures["tokens/s"]) == (1, 1.5, 7.5)
    assert figures["goodput, requests/s"] == 0.5
