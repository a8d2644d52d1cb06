"""A shrink and an expand for each projection of a decode step, 32 layers of the Llama-3-8B shape with a bank each.

That is what adapters cost beside the base products where these do not take the rank-r side along; the activation is left out.
`lora_layers` has both ways with the base products.
"""

from benchmarks.kernels.lora_inputs import GROUPS, MIXES, LoraInputs, Mix, make_inputs
from benchmarks.kernels.measure import Point, Points, assert_near

NUM_LAYERS = 32
RANKS = ((16, 16), (8, 64), (64, 64))
"""(rank of the adapters, rank that the bank is made for)."""


def points() -> Points:
    """One per mix at rank 16 in a bank of 16; then rank 8 and 64 in a bank of 64."""
    for mix in MIXES:
        yield _point(mix, *RANKS[0])
    for rank, max_rank in RANKS[1:]:
        yield _point((64, 8), rank, max_rank)


def _point(mix: Mix, rank: int, max_rank: int) -> Point:
    inputs = [make_inputs(group, mix, rank=rank, max_rank=max_rank) for _ in range(NUM_LAYERS) for group in GROUPS]

    def call() -> None:
        for each in inputs:
            each.shrink()
            each.expand()

    parameters = {**inputs[0].parameters, "max_rank": max_rank}
    num_bytes = sum(each.bytes_of_a + each.bytes_of_b for each in inputs)
    return Point("lora_step", parameters, call, lambda: check(inputs[0]), num_bytes)


def check(inputs: LoraInputs) -> None:
    """Both launches against the oracle."""
    inputs.shrink()
    expected = inputs.expected_y(inputs.y, inputs.expected_h())
    inputs.expand()
    assert_near(inputs.y, expected)
