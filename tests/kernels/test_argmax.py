"""`argmax` against its oracle, and the oracle against what NumPy says."""

import pytest
import torch

from services.generator.kernels.argmax import BLOCK_V, argmax
from services.generator.kernels.arguments import KernelArgumentError
from services.generator.kernels.reference import argmax as reference
from tests.kernels.guards import Guarded
from tests.kernels.replay import capture


def test_the_oracle_breaks_ties_to_the_lowest_id():
    logits = torch.tensor([[0.0, 3.0, 3.0], [1.0, 0.0, 1.0], [-5.0, -4.0, -1.0]])
    assert reference.argmax(logits).tolist() == [1, 0, 2] == logits.numpy().argmax(axis=1).tolist()


@pytest.mark.parametrize("vocab_size", [1, 7, 259, BLOCK_V, BLOCK_V + 1, 2 * BLOCK_V + 5])
def test_ragged_sizes_with_many_ties(vocab_size, place):
    device, dtype = place
    logits = torch.randint(-3, 4, (5, vocab_size)).to(device, dtype)  # ties within a block and between blocks
    logits[1] = -torch.arange(vocab_size)
    logits[2] = torch.arange(vocab_size).clamp(max=2000)
    guarded = Guarded(5, dtype=torch.int64, device=device)
    argmax(guarded.tensor, logits)
    guarded.assert_untouched(torch.zeros(5, dtype=torch.bool))
    assert torch.equal(guarded.tensor, reference.argmax(logits))


def test_rows_without_a_number_give_an_id_all_the_same(place):
    device, dtype = place
    logits = torch.full((3, 300), float("nan")).to(device, dtype)
    logits[1, 17] = 1.0
    logits[2] = float("-inf")
    ids = torch.empty(3, dtype=torch.int64, device=device)
    argmax(ids, logits)
    assert bool(((ids >= 0) & (ids < 300)).all())
    assert ids[1] == 17


def test_rows_that_are_part_of_a_wider_tensor(place):
    device, dtype = place
    logits = torch.randn(4, 900).to(device, dtype)[:, 100:500]
    ids = torch.empty(4, dtype=torch.int64, device=device)
    argmax(ids, logits)
    assert torch.equal(ids, reference.argmax(logits))


@pytest.mark.gpu
def test_a_graph_replays_with_other_values(cuda):
    logits = torch.randn(64, 128_256, device=cuda, dtype=torch.bfloat16)
    ids = torch.empty(64, device=cuda, dtype=torch.int64)
    graph = capture(lambda: argmax(ids, logits))
    logits.normal_()
    graph.replay()
    assert torch.equal(ids, reference.argmax(logits))


def test_arguments_are_checked(place):
    device, dtype = place
    with pytest.raises(KernelArgumentError, match="ids has the shape"):
        argmax(torch.empty(3, dtype=torch.int64, device=device), torch.empty(2, 8, device=device, dtype=dtype))
