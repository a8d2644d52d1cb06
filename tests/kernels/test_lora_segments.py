"""Segments and chunks against their definition, row by row; popularity shapes as in Punica."""

import numpy as np
import pytest

from services.generator.kernels import lora_segments
from services.generator.kernels.chunks import cut_chunks, max_chunks
from services.generator.kernels.lora_segments import NO_ADAPTER, SegmentLayout, chunk_size_for, max_adapters_for


def popularity(shape: str, num_rows: int, num_slots: int, rng: np.random.Generator) -> np.ndarray:
    """Slots of the rows: identical, distinct, uniform or skewed; `mixed` has rows without an adapter, `base` only such."""
    rows = {
        "identical": np.full(num_rows, num_slots - 1),
        "distinct": rng.permutation(np.arange(num_rows) % num_slots),
        "uniform": rng.integers(0, num_slots, num_rows),
        "skewed": np.minimum(rng.geometric(0.5, num_rows) - 1, num_slots - 1),
        "mixed": rng.integers(-1, num_slots, num_rows),
        "base": np.full(num_rows, NO_ADAPTER),
    }
    return rows[shape].astype(np.int32)


SHAPES = ("identical", "distinct", "uniform", "skewed", "mixed", "base")


@pytest.mark.parametrize("chunk_size", [1, 4, 16])
@pytest.mark.parametrize("num_rows", [1, 3, 16, 17, 64])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_row_is_in_exactly_one_chunk_of_its_slot(shape, num_rows, chunk_size):
    row_slots = popularity(shape, num_rows, 5, np.random.default_rng(num_rows))
    layout = SegmentLayout(num_rows, 5, chunk_size)
    packed = layout.pack(row_slots)
    segments = layout.split(packed)
    assert packed.dtype == np.int32
    assert sorted(segments.token_order.tolist()) == list(range(num_rows))
    seen = []
    for slot, start, length in zip(segments.chunk_slots, segments.chunk_starts, segments.chunk_lens, strict=True):
        rows = segments.token_order[start : start + length]
        assert len(rows) == length <= chunk_size
        assert length or slot == NO_ADAPTER
        assert (row_slots[rows] == slot).all()
        seen += rows.tolist()
    assert sorted(seen) == list(range(num_rows))


def test_the_room_for_chunks_is_reached_and_never_exceeded():
    rng = np.random.default_rng(0)
    most = 0
    for _ in range(300):
        lengths = rng.multinomial(12, np.ones(4) / 4).astype(np.int32)
        count = len(cut_chunks(lengths, 4)[0])
        assert count <= max_chunks(12, 4, 4)
        most = max(most, count)
    assert most == max_chunks(12, 4, 4)


def test_rows_of_a_segment_keep_their_order():
    layout = SegmentLayout(6, 2, 4)
    segments = layout.split(layout.pack(np.array([1, 0, 1, -1, 0, 1], np.int32)))
    assert segments.token_order.tolist() == [3, 1, 4, 0, 2, 5]


@pytest.mark.parametrize("max_rank", [8, 32, 33, 256])
@pytest.mark.parametrize("table", [lora_segments.CHUNK_SIZES, ((1 << 30, ((1 << 30, 64),)),)])
@pytest.mark.parametrize("num_rows", [1, 7, 8, 64, 127, 128, 2048])
def test_the_most_adapters_of_a_chunk_size(num_rows, table, max_rank, monkeypatch):
    """Also of a table with one size, as benchmarks put in its place."""
    monkeypatch.setattr(lora_segments, "CHUNK_SIZES", table)
    most = {chunk_size_for(num_rows, count, max_rank): count for count in range(1, num_rows + 1)}
    assert most == {size: max_adapters_for(num_rows, size, max_rank) for size in most}


@pytest.mark.parametrize(
    ("num_rows", "num_adapters", "expected"),
    [(1, 1, 1), (8, 1, 16), (8, 8, 1), (64, 8, 16), (64, 64, 1), (64, 0, 16), (2048, 64, 16), (2048, 1, 64)],
)
def test_few_rows_an_adapter_are_taken_one_by_one(num_rows, num_adapters, expected):
    assert chunk_size_for(num_rows, num_adapters, 16) == expected


@pytest.mark.parametrize(("max_rank", "fewest"), [(8, 8), (32, 8), (33, 4), (256, 4)])
def test_tiles_begin_at_fewer_rows_an_adapter_where_ranks_are_high(max_rank, fewest):
    sizes = [chunk_size_for(rows_each * 4, 4, max_rank) for rows_each in (fewest - 1, fewest, 127, 128)]
    assert sizes == [1, 16, 16, 64]
