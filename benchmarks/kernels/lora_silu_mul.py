"""`lora_silu_mul` on gate and up of the Llama-3-8B shape, with intermediates as they come.

From the base product in the decode mixes, a view beside gate and up, of all first slots; from `lora_shrink` in prefill.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.kernels.lora_inputs import JOINED, MIXES, PREFILLS, LoraInputs, Mix, make_inputs
from benchmarks.kernels.measure import Point, Points, assert_near
from services.generator.kernels.lora_silu_mul import lora_silu_mul
from services.generator.kernels.reference.silu_mul import silu_mul


def points() -> Points:
    """One per mix."""
    for mix in (*MIXES, *PREFILLS):
        inputs = gate_inputs(mix)
        yield Point("lora_silu_mul", inputs.lora.parameters, inputs.call, inputs.check, inputs.num_bytes)


@dataclass(frozen=True)
class GateInputs:
    """What the kernel reads and writes; `h` as `check_delta` describes it."""

    lora: LoraInputs
    gate_up: Tensor
    h: Tensor
    out: Tensor

    def call(self) -> None:
        """One launch."""
        lora = self.lora
        adapters = (lora.b, lora.ranks, lora.scales, *lora.segments.arrays)
        lora_silu_mul(self.out, self.gate_up, self.h, *adapters, chunk_size=lora.chunk_size)

    def check(self) -> None:
        """Against the oracles of its two halves."""
        h = self.h.float().sum(0)
        if h.shape[1] > 1:
            h = h[torch.arange(len(h), device=h.device), self.lora.segments.row_slots.long()][:, None]
        self.call()
        assert_near(self.out, silu_mul(self.lora.expected_y(self.gate_up, h[:, 0])))

    @property
    def num_bytes(self) -> int:
        """Gate and up, the activation, and B once; the intermediates are few."""
        return self.gate_up.nbytes + self.out.nbytes + self.lora.bytes_of_b


def gate_inputs(mix: Mix) -> GateInputs:
    """Random bf16 inputs of one layer."""
    num_joined = None if mix in PREFILLS else next(count for count in JOINED if count >= mix[1])
    lora = make_inputs("gate_up", mix, num_slots=num_joined)
    out = lora.y.new_empty(len(lora.y), lora.slice_sizes[0])
    if num_joined is None:
        lora.shrink()
        return GateInputs(lora, lora.y, lora.h[:, :, None], out)
    _, num_slices, max_rank, _ = lora.a.shape
    intermediates = torch.randn(len(out), num_joined * num_slices * max_rank, device=out.device, dtype=out.dtype)
    whole = torch.cat([lora.y, intermediates], dim=1)
    gate_up, h = torch.split(whole, [lora.y.shape[1], intermediates.shape[1]], dim=1)
    return GateInputs(lora, gate_up, h.view(1, len(h), num_joined, num_slices, max_rank), out)
