"""`paged_attention_decode` against the torch oracle, itself tested against softmax written out in fp64."""

import pytest
import torch

from services.generator.kernels.arguments import KernelArgumentError
from services.generator.kernels.paged_attention_decode import MAX_SPLITS, num_splits, paged_attention_decode
from tests.kernels.attention_cases import BLOCK_SIZE, AttentionCase, make_case
from tests.kernels.guards import Guarded
from tests.kernels.replay import capture
from tests.kernels.tolerances import assert_close


def attend(out: torch.Tensor, case: AttentionCase, splits: int, window: int | None = None) -> None:
    rows, heads, dim = case.query.shape
    parts = torch.full((rows, heads, splits, dim), torch.nan, device=out.device)
    lse = torch.full((rows, heads, splits), torch.nan, device=out.device)
    paged_attention_decode(
        out, parts, lse, case.query, case.keys, case.values, case.block_table, case.context_lens,
        block_size=BLOCK_SIZE, window=window,
    )  # fmt: skip


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("window", [None, 1, 70])
@pytest.mark.parametrize(
    ("context_lens", "shape"),
    [([1], (1, 1, 16)), ([0, 63, 64, 65], (4, 2, 32)), ([400, 5], (6, 2, 80)), ([129, 0, 31], (9, 3, 64))],
)
def test_ragged_sizes(context_lens, shape, window, splits, place):
    device, dtype = place
    case = make_case(context_lens, [1] * len(context_lens), shape, place)
    guarded = Guarded(*case.query.shape, dtype=dtype, device=device)
    attend(guarded.tensor, case, splits, window)
    is_padding = case.context_lens == 0
    guarded.assert_untouched(is_padding)
    # The weights are rounded to the dtype before they meet the values.
    assert_close(guarded.tensor[~is_padding], case.expected(window)[~is_padding], slack=4)


def test_long_rows_have_few_splits_when_there_are_many_of_them():
    assert num_splits(1, 8) == MAX_SPLITS
    assert num_splits(16, 8) == 4
    assert num_splits(256, 8) == 1


@pytest.mark.gpu
@pytest.mark.parametrize("splits", [1, 8])
def test_a_graph_replays_with_other_lengths(splits, cuda):
    place = (cuda, torch.bfloat16)
    case = make_case([200] * 5, [1] * 5, (32, 8, 128), place)
    out = torch.empty_like(case.query)
    graph = capture(lambda: attend(out, case, splits))
    other = make_case([1, 17, 128, 133, 200], [1] * 5, (32, 8, 128), place)
    for name in ("query", "keys", "values", "block_table", "context_lens"):
        getattr(case, name).copy_(getattr(other, name))
    graph.replay()
    assert_close(out, other.expected(None), slack=4)


@pytest.mark.gpu
def test_a_cache_of_more_than_2_31_elements(cuda):
    rows, dim, num_slots = 1, 128, (1 << 31) // (8 * 128) + 64
    keys, values = (torch.zeros(num_slots, 8, dim, device=cuda, dtype=torch.bfloat16) for _ in range(2))
    keys[-16:], values[-16:] = torch.randn(2, 16, 8, dim, device=cuda, dtype=torch.bfloat16)
    query = torch.randn(rows, 32, dim, device=cuda, dtype=torch.bfloat16)
    table = torch.tensor([[num_slots // 16 - 1]], dtype=torch.int32, device=cuda)
    lens = torch.tensor([16], dtype=torch.int32, device=cuda)
    out = torch.empty_like(query)
    parts, lse = torch.empty(rows, 32, 1, dim, device=cuda), torch.empty(rows, 32, 1, device=cuda)
    paged_attention_decode(out, parts, lse, query, keys, values, table, lens, block_size=16)
    k, v = (each[-16:].float().repeat_interleave(4, dim=1) for each in (keys, values))  # [16, 32, D]
    weights = torch.einsum("hd,khd->hk", query[0].float(), k).mul(dim**-0.5).softmax(1)
    assert_close(out[0], torch.einsum("hk,khd->hd", weights, v), slack=4)


def test_arguments_are_checked(place):
    case = make_case([3], [1], (4, 2, 32), place)
    out = torch.empty_like(case.query)
    parts, lse = torch.empty(1, 4, 1, 32, device=place[0]), torch.empty(1, 4, 1, device=place[0])
    given = (case.query, case.keys, case.values, case.block_table, case.context_lens)
    with pytest.raises(KernelArgumentError, match="block_table has the shape"):
        paged_attention_decode(out, parts, lse, *given[:3], case.block_table[:0], given[4], block_size=4)
    with pytest.raises(KernelArgumentError, match="cannot share"):
        paged_attention_decode(out[:, :3], parts, lse, case.query[:, :3], *given[1:], block_size=4)
    with pytest.raises(KernelArgumentError, match="context_lens is"):
        paged_attention_decode(out, parts, lse, *given[:4], case.context_lens.long(), block_size=4)
