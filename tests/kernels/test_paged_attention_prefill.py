"""`paged_attention_prefill` against the torch oracle, itself tested against softmax written out in fp64."""

import dataclasses

import numpy as np
import pytest
import torch

from services.generator.kernels.arguments import KernelArgumentError
from services.generator.kernels.paged_attention_prefill import paged_attention_prefill
from services.generator.kernels.query_tiles import NO_ROW, TILE_QUERIES, max_query_tiles, query_tiles
from tests.kernels.attention_cases import BLOCK_SIZE, AttentionCase, make_case
from tests.kernels.guards import SENTINEL, Guarded
from tests.kernels.replay import capture
from tests.kernels.tolerances import assert_close


def metadata_of(case: AttentionCase, num_tiles: int) -> tuple[torch.Tensor, torch.Tensor]:
    """cu_query_lens and tiles."""
    cu = torch.cat([torch.zeros(1, dtype=torch.int64), case.query_lens.cumsum(0)]).int()
    tiles = torch.from_numpy(query_tiles(case.context_lens.cpu().numpy(), case.query_lens.int().numpy(), num_tiles))
    return cu.to(case.query.device), tiles.to(case.query.device)


def attend(
    out: torch.Tensor, case: AttentionCase, metadata: tuple[torch.Tensor, ...], window: int | None = None
) -> None:
    paged_attention_prefill(
        out, case.query, *case.own, *case.earlier, case.block_table, case.context_lens, *metadata,
        block_size=BLOCK_SIZE, window=window,
    )  # fmt: skip


@pytest.mark.parametrize("window", [None, 1, 9, 40])
@pytest.mark.parametrize(
    ("context_lens", "query_lens", "shape"),
    [
        ([1], [1], (1, 1, 16)),
        ([15, 16, 17], [15, 16, 17], (2, 2, 16)),
        ([100, 7, 41, 17], [1, 7, 20, 17], (4, 2, 32)),
        ([40, 65], [18, 3], (3, 1, 80)),
        ([66], [33], (9, 3, 64)),
        ([150], [150], (2, 1, 16)),
        ([290], [140], (2, 2, 16)),
    ],
)
def test_ragged_sizes(context_lens, query_lens, shape, window, place):
    device, dtype = place
    case = make_case(context_lens, query_lens, shape, place)
    guarded = Guarded(*case.query.shape, dtype=dtype, device=device)
    attend(guarded.tensor, case, metadata_of(case, max_query_tiles(sum(query_lens), len(query_lens))), window)
    guarded.assert_untouched(torch.zeros(case.query.shape, dtype=torch.bool))
    # The weights are rounded to the dtype before they meet the values.
    assert_close(guarded.tensor, case.expected(window), slack=4)


def test_tokens_in_no_tile_are_not_touched(place):
    case = make_case([9, 30], [9, 30], (4, 2, 32), place)
    cu, tiles = metadata_of(case, 4)
    tiles[0, tiles[0] == 1] = NO_ROW
    for each in case.own:
        each[9:] = torch.nan  # of padding
    out = torch.full_like(case.query, SENTINEL)
    attend(out, case, (cu, tiles))
    assert bool((out[9:] == SENTINEL).all())
    assert_close(out[:9], case.expected(None)[:9], slack=4)


def test_tiles_cover_every_query_once_and_those_with_most_keys_come_first():
    lengths = np.array([0, 1, TILE_QUERIES, 0, TILE_QUERIES + 1, 3], np.int32)
    before = np.array([9, 5, 0, 0, 0, TILE_QUERIES + 1], np.int32)
    tiles = query_tiles(before + lengths, lengths, 9)
    assert tiles.dtype == np.int32
    assert tiles[0].tolist() == [5, 4, 1, 2, 4, NO_ROW, NO_ROW, NO_ROW, NO_ROW]
    assert tiles[1, :5].tolist() == [0, TILE_QUERIES, 0, 0, 0]


@pytest.mark.gpu
def test_a_graph_replays_with_other_rows(cuda):
    place = (cuda, torch.bfloat16)
    case = make_case([200, 160], [100, 60], (32, 8, 128), place)
    out = torch.empty_like(case.query)
    metadata = metadata_of(case, max_query_tiles(160, 2))
    graph = capture(lambda: attend(out, case, metadata))
    other = make_case([199, 11], [149, 11], (32, 8, 128), place)
    for mine, theirs in zip((*case.own, *case.earlier), (*other.own, *other.earlier), strict=True):
        mine.copy_(theirs)
    for name in ("query", "block_table", "context_lens"):
        getattr(case, name).copy_(getattr(other, name))
    for mine, theirs in zip(metadata, metadata_of(other, max_query_tiles(160, 2)), strict=True):
        mine.copy_(theirs)
    graph.replay()
    assert_close(out, other.expected(None), slack=4)


def test_arguments_are_checked(place):
    case = make_case([9], [9], (4, 2, 32), place)
    cu, tiles = metadata_of(case, 1)
    with pytest.raises(KernelArgumentError, match="cu_query_lens has the shape"):
        attend(case.query, case, (cu[:-1], tiles))
    with pytest.raises(KernelArgumentError, match="tiles is"):
        attend(case.query, case, (cu, tiles.long()))
    with pytest.raises(KernelArgumentError, match="own_values has the shape"):
        attend(case.query, dataclasses.replace(case, own=(case.own[0], case.own[1][:, :1])), (cu, tiles))
    odd = make_case([9], [9], (1, 1, 18), place)
    with pytest.raises(KernelArgumentError, match="must begin at multiples of 16 bytes"):
        attend(odd.query, odd, (cu, tiles))
