"""`sample` against what plain Python says may be drawn, and against its oracle."""

import pytest
import torch

from services.generator.kernels.arguments import KernelArgumentError
from services.generator.kernels.reference import sample as reference
from services.generator.kernels.sample import BLOCK_V, sample
from tests.kernels.guards import Guarded
from tests.kernels.replay import capture
from tests.kernels.sample_cases import brute_force_filter, middles, weights

NEVER = (0, 1.0, 0.0)
"""top_k, top_p and min_p of a row that may draw all."""


def rows_of(filters, device):
    """The three tensors."""
    dtypes = torch.int64, torch.float32, torch.float32
    return tuple(
        torch.tensor(f, dtype=d, device=device) for f, d in zip(zip(*filters, strict=True), dtypes, strict=True)
    )


def choose(logits, temperature, filters, numbers):
    """What the kernel chooses for rows with their own temperatures, filters and uniform numbers, as a list."""
    device = logits.device
    ids = torch.full((len(logits),), -1, dtype=torch.int64, device=device)
    floats = torch.tensor(temperature, dtype=torch.float32, device=device)
    uniforms = torch.tensor(numbers, dtype=torch.float64, device=device)
    sample(ids, logits, floats, filters and rows_of(filters, device), uniforms)
    return ids.tolist()


@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
@pytest.mark.parametrize(
    "top", [NEVER, (5, 1.0, 0.0), (0, 0.83, 0.0), (0, 1.0, 0.11), (0, 1.0, 1.0), (12, 0.77, 0.013), (3, 0.1, 0.5)]
)
@pytest.mark.parametrize("has_ties", [False, True])
def test_every_token_that_is_kept_is_drawn_by_its_share_of_numbers(temperature, top, has_ties, place):
    device, dtype = place
    logits = torch.randn(23) * 2
    logits = (logits.round() if has_ties else logits).to(dtype)
    probs = weights(logits.tolist(), temperature)
    numbers = middles(probs, brute_force_filter(probs, *top))
    repeated = logits.to(device).expand(len(numbers), -1).contiguous()
    filters = None if top == NEVER else [top] * len(numbers)
    assert choose(repeated, [temperature] * len(numbers), filters, list(numbers.values())) == list(numbers)


@pytest.mark.parametrize("vocab_size", [1, 7, 259, BLOCK_V, BLOCK_V + 1, 2 * BLOCK_V + 5])
def test_ragged_sizes_and_rows_of_all_kinds(vocab_size, place):
    device, dtype = place
    logits = (torch.randn(9, vocab_size) * torch.tensor([0.1, 1, 4]).repeat(3)[:, None]).to(dtype)
    temperature = [1.0, 0.5, 1.5, 0.0, 1.0, 0.8, 1.0, 1.0, 2.0]
    filters = [NEVER, (0, 0.9, 0.0), (50, 1.0, 0.0), (50, 0.5, 0.0)] * 2 + [(1000, 0.83, 0.003)]
    numbers, expected = [], []
    for row, t, top in zip(logits.tolist(), temperature, filters, strict=True):
        probs = weights(row, t or 1.0)
        by_id = middles(probs, brute_force_filter(probs, *top))
        chosen = sorted(by_id)[len(by_id) * 2 // 3]
        numbers.append(by_id[chosen])
        expected.append(chosen if t else row.index(max(row)))
    assert choose(logits.to(device), temperature, filters, numbers) == expected


def test_ties_at_the_edge_of_what_is_kept_go_to_the_lowest_ids_across_blocks(place):
    device, dtype = place
    logits = torch.zeros(4, 2 * BLOCK_V + 100, dtype=dtype, device=device)
    logits[:, BLOCK_V // 2] = 1.0
    most = BLOCK_V + 10
    filters = [(most, 1.0, 0.0), (most, 1.0, 0.0), (0, 1e-6, 0.0), (3, 1.0, 0.5)]
    numbers = [1 - 2**-24, 0.0, 0.7, 1 - 2**-24]
    assert choose(logits, [1.0] * 4, filters, numbers) == [most - 1, 0, BLOCK_V // 2, BLOCK_V // 2]


def test_what_is_no_number_is_never_drawn(place):
    device, dtype = place
    inf, nan = float("inf"), float("nan")
    logits = torch.tensor(
        [[nan, 1.0, nan, -inf], [-inf, nan, 2.0, 2.0], [nan] * 4, [-inf] * 4, [0.0, inf, 1.0, inf]], dtype=dtype
    ).to(device)
    filters = [(2, 0.9, 0.1)] * 5
    for numbers in ([0.0] * 5, [0.4] * 5, [1 - 2**-24] * 5):
        for top in (None, filters):
            chosen = choose(logits, [1.0] * 5, top, numbers)
            assert chosen[0] == 1
            assert chosen[1] == (2 if numbers[0] < 0.5 else 3)
            assert chosen[4] == 1
            assert all(0 <= each < 4 for each in chosen)


def test_small_temperatures_take_the_likeliest(place):
    device, dtype = place
    logits = torch.tensor([[3e4, -3e4, 0.0], [1.0, 2.0, 1.5]], dtype=dtype).to(device)
    assert choose(logits, [1e-5, 1e-5], [(0, 0.9, 0.0)] * 2, [0.99, 0.99]) == [0, 1]


def test_ids_alone_are_written_from_rows_of_a_wider_tensor(place):
    device, dtype = place
    wide = torch.randn(5, 900).to(device, dtype)
    logits, temperature = wide[:, 100:500], torch.full((5,), 0.7, device=device)
    uniforms = torch.rand(5, dtype=torch.float64).to(device)
    filters = rows_of([(0, 1.0, 0.0), (9, 1.0, 0.0), (0, 0.5, 0.0), (0, 1.0, 0.1), (30, 0.9, 0.01)], device)
    guarded = Guarded(5, dtype=torch.int64, device=device)
    sample(guarded.tensor, logits, temperature, filters, uniforms)
    guarded.assert_untouched(torch.zeros(5, dtype=torch.bool))
    assert torch.equal(guarded.tensor, reference.sample(logits, temperature, filters, uniforms))


@pytest.mark.gpu
def test_a_graph_replays_with_other_values(cuda):
    logits = torch.randn(64, 128_256, device=cuda, dtype=torch.bfloat16)
    temperature, uniforms = torch.ones(64, device=cuda), torch.rand(64, device=cuda, dtype=torch.float64)
    filters = rows_of([NEVER, (40, 1.0, 0.0), (0, 0.95, 0.0), (0, 0.9, 0.05)] * 16, cuda)
    ids = torch.empty(64, device=cuda, dtype=torch.int64)
    graph = capture(lambda: sample(ids, logits, temperature, filters, uniforms))
    logits.normal_(std=3)
    temperature.fill_(0.8)
    uniforms.uniform_()
    for each in filters:
        each.copy_(each.roll(1))
    graph.replay()
    is_same = ids == reference.sample(logits, temperature, filters, uniforms)
    assert is_same.sum() >= 62  # a number at the edge of a token may draw the next one


def test_arguments_are_checked(place):
    device, dtype = place
    logits, floats = torch.zeros(2, 8, dtype=dtype, device=device), torch.zeros(2, device=device)
    ids, uniforms = torch.zeros(2, dtype=torch.int64, device=device), torch.zeros(2, dtype=torch.float64, device=device)
    with pytest.raises(KernelArgumentError, match="uniforms is torch"):
        sample(ids, logits, floats, None, floats)
    with pytest.raises(KernelArgumentError, match="top_k is torch"):
        sample(ids, logits, floats, (floats, floats, floats), uniforms)
    with pytest.raises(KernelArgumentError, match="min_p has the shape"):
        sample(ids, logits, floats, (ids, floats, floats[:1]), uniforms)
