"""`step_indices` against its oracle, and the oracle against the arithmetic written out."""

import pytest
import torch

from services.generator.kernels.arguments import KernelArgumentError
from services.generator.kernels.reference import step_indices as reference
from services.generator.kernels.step_indices import step_indices
from tests.kernels.guards import Guarded
from tests.kernels.replay import capture

ON_DEVICE, PADDING, SIZE = -1, -2, 4
MARKS = {"block_size": SIZE, "on_device": ON_DEVICE, "padding": PADDING}


def make_case(num_tokens, device, seed=0):
    """Given ids, positions and rows of some tokens, the tables they point into."""
    random = torch.Generator().manual_seed(seed)

    def ints(high, *shape):
        return torch.randint(0, high, shape, generator=random, dtype=torch.int32).to(device)

    given = ints(1000, num_tokens)
    given[::3], given[2::5] = ON_DEVICE, PADDING
    return given, ints(6 * SIZE, num_tokens), ints(9, num_tokens), ints(200, 9, 6), ints(1000, 9).long()


def test_the_oracle_against_the_arithmetic():
    given, positions, rows, table, last = make_case(30, "cpu")
    ids, slots = reference.step_indices(given, positions, rows, table, last, **MARKS)
    for t in range(30):
        row, position = int(rows[t]), int(positions[t])
        id_ = {ON_DEVICE: int(last[row]), PADDING: 0}.get(int(given[t]), int(given[t]))
        slot = int(table[row, position // SIZE]) * SIZE + position % SIZE
        assert (int(ids[t]), int(slots[t])) == (id_, -1 if given[t] == PADDING else slot)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request, place):
    """Where kernels run; there are no floats here, hence one dtype is enough."""
    if place != (request.param, torch.float32):
        pytest.skip("another dtype or device")
    return request.param


@pytest.mark.parametrize("num_tokens", [1, 31, 32, 33, 100])
def test_ragged_sizes(num_tokens, device):
    case = make_case(num_tokens, device)
    outs = [Guarded(num_tokens, dtype=torch.int64, device=device) for _ in range(2)]
    step_indices(outs[0].tensor, outs[1].tensor, *case, **MARKS)
    for out, expected in zip(outs, reference.step_indices(*case, **MARKS), strict=True):
        out.assert_untouched(torch.zeros(num_tokens, dtype=torch.bool))
        assert torch.equal(out.tensor, expected)


def test_slots_beyond_32_bits(device):
    table = torch.full((1, 1), 2**31 - 1, dtype=torch.int32, device=device)
    zero = torch.zeros(1, dtype=torch.int32, device=device)
    ids, slots = torch.empty(2, 1, dtype=torch.int64, device=device)
    step_indices(ids, slots, zero, zero + 3, zero, table, zero.long(), **MARKS)
    assert slots.item() == (2**31 - 1) * SIZE + 3


@pytest.mark.gpu
def test_a_graph_replays_with_other_values(cuda):
    case = make_case(64, cuda)
    ids, slots = torch.empty(2, 64, dtype=torch.int64, device=cuda)
    graph = capture(lambda: step_indices(ids, slots, *case, **MARKS))
    for tensor, other in zip(case, make_case(64, cuda, seed=1), strict=True):
        tensor.copy_(other)
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip((ids, slots), reference.step_indices(*case, **MARKS), strict=True))


def test_arguments_are_checked(device):
    case = make_case(5, device)
    with pytest.raises(KernelArgumentError, match="token_ids has the shape"):
        step_indices(*torch.empty(2, 4, dtype=torch.int64, device=device), *case, **MARKS)
