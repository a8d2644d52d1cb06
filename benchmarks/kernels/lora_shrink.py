"""`lora_shrink` on each projection group of the Llama-3-8B shape: decode mixes and prefill of one and eight adapters."""

from benchmarks.kernels.lora_inputs import GROUPS, MIXES, LoraInputs, make_inputs
from benchmarks.kernels.measure import Point, Points, assert_near

PREFILLS = ((2048, 1), (8192, 8))


def points() -> Points:
    """One per group and mix."""
    for group in GROUPS:
        for num_rows, num_adapters in (*MIXES, *PREFILLS):
            yield _point(group, make_inputs(group, num_rows, num_adapters), num_adapters)


def _point(group: str, inputs: LoraInputs, num_adapters: int) -> Point:
    def check() -> None:
        inputs.shrink()
        assert_near(inputs.h.sum(0), inputs.expected_h())

    parameters = {"group": group, "rows": len(inputs.x), "adapters": num_adapters, "rank": 16}
    return Point("lora_shrink", parameters, inputs.shrink, check, inputs.bytes_of_a + inputs.x.nbytes)
