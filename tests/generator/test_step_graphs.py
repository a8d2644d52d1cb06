"""Numbers of tokens that graphs are captured for: each once, and up to what a step may have."""

from itertools import pairwise

import pytest

from services.generator.core.specs import SchedulerLimits
from services.generator.runner.step_graphs import PROMPT_SIZES, graph_sizes


@pytest.mark.parametrize("max_tokens", [1, 16, 24, 512, PROMPT_SIZES[-1], 8192])
@pytest.mark.parametrize("max_rows", [1, 12, 128, 200, 256])
def test_each_size_once_and_the_largest_is_the_limit(max_rows, max_tokens):
    sizes = graph_sizes(SchedulerLimits(max_rows, max_tokens, 64, 100))
    for each, largest in (
        (sizes.decodes, min(max_rows, max_tokens)),
        (sizes.prompts, min(PROMPT_SIZES[-1], max_tokens)),
    ):
        assert all(smaller < larger for smaller, larger in pairwise(each))
        assert each[-1] == largest
