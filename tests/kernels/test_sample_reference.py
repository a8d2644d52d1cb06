"""The oracle of `sample` against closed forms: brute-force filters, expected frequencies."""

import pytest
import torch

from services.generator.kernels.reference import filters
from services.generator.kernels.reference.filters import filter_top
from services.generator.kernels.reference.sample import draw, sample
from tests.kernels.sample_cases import brute_force_filter


def uniforms(count, seed=0):
    return torch.rand(count, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("likely", [1024, 4])
@pytest.mark.parametrize("seed", range(20))
def test_filters_against_brute_force(seed, likely, monkeypatch):
    monkeypatch.setattr(filters, "LIKELY", likely)
    generator = torch.Generator().manual_seed(seed)
    probs = torch.softmax(torch.randn(6, 11, generator=generator) * 2, -1)
    probs[3, :] = 1 / 11  # ties everywhere
    top_k = torch.tensor([0, 1, 3, 4, 11, 50])
    top_p = torch.tensor([1.0, 0.5, 0.9, 0.6, 0.3, 1e-6])
    min_p = torch.tensor([0.0, 0.0, 0.3, 0.0, 0.5, 0.9]).roll(seed)
    filtered = filter_top(probs.clone(), top_k, top_p, min_p)
    for row in range(6):
        kept = brute_force_filter(probs[row].double().tolist(), int(top_k[row]), float(top_p[row]), float(min_p[row]))
        assert sorted(kept) == filtered[row].nonzero().flatten().tolist()
        assert torch.equal(filtered[row, kept], probs[row, kept])


@pytest.mark.parametrize("seed", range(10))
def test_the_likeliest_alone_give_the_same_bits_as_the_whole_vocabulary(seed, monkeypatch):
    generator = torch.Generator().manual_seed(seed)
    scale = torch.tensor([0.1, 1, 3, 3, 3, 8, 8, 8])[:, None]
    logits = (torch.randn(8, 5000, generator=generator) * scale).round(decimals=1)  # many ties
    probs = torch.softmax(logits, -1)
    top_k = torch.tensor([0, 40, 0, 7, 2000, 0, 0, 1])
    top_p = torch.tensor([1.0, 1.0, 0.5, 0.9, 0.9, 0.8, 0.99, 0.3])
    min_p = torch.tensor([0.0, 0.0, 0.01, 0.0, 0.0, 0.0, 1e-3, 0.0])
    rows = [filter_top(*(each[row : row + 1] for each in (probs, top_k, top_p, min_p))) for row in range(8)]
    monkeypatch.setattr(filters, "LIKELY", 5000)
    assert torch.equal(torch.cat(rows), filter_top(probs, top_k, top_p, min_p))


def test_few_likely_tokens_are_found_without_a_sort_of_the_vocabulary(monkeypatch):
    probs = torch.softmax(torch.randn(2, 5000, generator=torch.Generator().manual_seed(0)) * 8, -1)
    with monkeypatch.context() as patch:
        patch.setattr(filters, "LIKELY", 5000)
        whole = filter_top(probs, torch.tensor([0, 9]), torch.tensor([0.9, 1.0]), torch.zeros(2))
    monkeypatch.setattr(torch.Tensor, "sort", _refuse_wide(torch.Tensor.sort))
    assert torch.equal(filter_top(probs, torch.tensor([0, 9]), torch.tensor([0.9, 1.0]), torch.zeros(2)), whole)
    beside_free = filter_top(probs, torch.tensor([0, 9]), torch.ones(2), torch.zeros(2))
    assert torch.equal(beside_free, torch.stack([probs[0], whole[1]]))
    with pytest.raises(AssertionError, match="sorted 5000"):
        filter_top(probs, torch.tensor([0, 2000]), torch.ones(2), torch.zeros(2))


def _refuse_wide(sort):
    def narrow(tensor, **options):
        assert tensor.shape[-1] <= filters.LIKELY, f"sorted {tensor.shape[-1]}"
        return sort(tensor, **options)

    return narrow


def test_draws_follow_the_distribution():
    probs = torch.tensor([0.5, 0.0, 0.3, 0.2])
    n = 20_000
    drawn = draw(probs.expand(n, 4), uniforms(n))
    counts = torch.bincount(drawn, minlength=4).double()
    assert counts[1] == 0
    expected = probs.double() * n
    chi_square = ((counts - expected)[expected > 0] ** 2 / expected[expected > 0]).sum()
    assert chi_square < 13.8  # 99.9 % quantile at 2 degrees of freedom


def test_a_draw_depends_on_its_row_only():
    logits = torch.randn(1, 100, generator=torch.Generator().manual_seed(0))
    others = torch.randn(7, 100, generator=torch.Generator().manual_seed(1))

    def one(row_logits, row):
        count = len(row_logits)
        numbers = uniforms(count)
        numbers[row] = 0.42
        return sample(row_logits, torch.full((count,), 0.9), None, numbers)[row].item()

    alone = one(logits, 0)
    assert one(torch.cat([others, logits]), 7) == alone
    assert one(torch.cat([others[:3], logits, others[3:]]), 3) == alone


def test_rows_at_temperature_zero_are_greedy_among_others():
    logits = torch.tensor([[0.0, 4.0, 4.0], [0.0, 4.0, 4.0]])
    temperature = torch.tensor([0.0, 1.0])
    drawn = {tuple(sample(logits, temperature, None, uniforms(2, s)).tolist()) for s in range(64)}
    assert {first for first, _ in drawn} == {1}
    assert {second for _, second in drawn} >= {1, 2}


def test_extreme_logits_give_no_nan():
    logits = torch.tensor([[1e30, -1e30, 0.0], [float("-inf"), 0.0, float("-inf")]])
    filters = (torch.tensor([2, 2]), torch.tensor([0.9, 0.9]), torch.tensor([0.0, 0.1]))
    drawn = sample(logits, torch.tensor([1e-5, 2.0]), filters, uniforms(2))
    assert drawn.tolist() == [0, 1]
