"""Columns of a program and warps of `lora_silu_mul`, for mixes of both its ways.

A sweep, for choosing `ROW_BLOCK` and `TILE_BLOCKS`; the row of the production tables' own choice says so.
"""

from collections.abc import Mapping
from itertools import product
from unittest.mock import patch

from benchmarks.kernels.lora_inputs import MIXES, PREFILLS
from benchmarks.kernels.lora_silu_mul import GateInputs, gate_inputs
from benchmarks.kernels.measure import Point, Points
from services.generator.kernels import lora_silu_mul as kernel
from services.generator.kernels.lora_delta import RANK_BLOCK, tile_sizes

BLOCKS = tuple(product((64, 128, 256, 512, 1024), (2, 4, 8)))
"""(BLOCK_F, warps)."""

MAX_EACH = 128
"""The most numbers of a tile that a thread may hold; beyond, it runs out of registers and the compiler takes minutes."""


def points() -> Points:
    """One per mix and block."""
    for mix in (*MIXES, *PREFILLS):
        inputs = gate_inputs(mix)
        height = max(inputs.lora.chunk_size, RANK_BLOCK.value)
        for block_f, warps in BLOCKS:
            is_cut = inputs.lora.chunk_size > 1 and tile_sizes(inputs.h.shape[4], block_f)[1] < block_f
            if block_f * height <= MAX_EACH * 32 * warps and not is_cut:
                yield _point(inputs, (block_f, warps))


def _point(inputs: GateInputs, block: tuple[int, int]) -> Point:
    chunk_size = inputs.lora.chunk_size
    tables: Mapping[str, object] = {"ROW_BLOCK": block, "TILE_BLOCKS": {chunk_size: block}}
    chosen = kernel.ROW_BLOCK if chunk_size == 1 else kernel.TILE_BLOCKS[chunk_size]

    def call() -> None:
        with patch.multiple(kernel, **tables):
            inputs.call()

    def check() -> None:
        with patch.multiple(kernel, **tables):
            inputs.check()

    about = {"chunk_size": chunk_size, "block_f": block[0], "warps": block[1], "is_chosen": block == chosen}
    return Point("lora_silu_mul_blocks", {**inputs.lora.parameters, **about}, call, check, inputs.num_bytes)
