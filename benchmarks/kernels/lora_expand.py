"""`lora_expand` on each projection group of the Llama-3-8B shape: decode mixes and prefill of one and eight adapters."""

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
        expected = inputs.expected_y(inputs.y, inputs.h.sum(0))
        inputs.expand()
        assert_near(inputs.y, expected)
        inputs.h.mul_(1e-3)  # the timed calls add again and again

    parameters = {"group": group, **inputs.parameters}
    return Point("lora_expand", parameters, inputs.expand, check, inputs.bytes_of_b + 2 * inputs.y.nbytes)
