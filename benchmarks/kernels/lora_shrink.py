"""`lora_shrink` on each projection group of the Llama-3-8B shape: decode mixes and prefill of one and eight adapters."""

from benchmarks.kernels.lora_inputs import GROUPS, MIXES, PREFILLS, LoraInputs, make_inputs
from benchmarks.kernels.measure import Point, Points, assert_near


def points() -> Points:
    """One per group and mix."""
    for group in GROUPS:
        for mix in (*MIXES, *PREFILLS):
            yield _point(group, make_inputs(group, mix))


def _point(group: str, inputs: LoraInputs) -> Point:
    def check() -> None:
        inputs.shrink()
        assert_near(inputs.h.sum(0), inputs.expected_h())

    parameters = {"group": group, **inputs.parameters}
    return Point("lora_shrink", parameters, inputs.shrink, check, inputs.bytes_of_a + inputs.x.nbytes)
