"""The projections of a decode step as the layers launch them, base products and activation included, 32 layers of the 8B shape.

In three ways: `base` has no adapters; in `own` a launch of `lora_shrink` computes the rank-r side; in `joined` the base products
take it along, ADR 0003. What adapters cost is what the others take beyond the first.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.kernels.lora_inputs import GROUPS, JOINED, MIXES, LoraInputs, Mix, make_inputs
from benchmarks.kernels.measure import Point, Points, assert_near
from services.generator.kernels.reference.rms_norm import rms_norm
from services.generator.kernels.reference.silu_mul import silu_mul
from services.generator.layers.adapter_group import AdapterGroup
from services.generator.layers.forward_batch import AdapterRows
from services.generator.layers.triton_kernels import TritonKernels
from shared.modeling.decoder import Linear, Norm

NUM_LAYERS = 32
KERNELS = TritonKernels()


def points() -> Points:
    """One per number of rows without adapters, and two per mix."""
    for num_rows in sorted({num_rows for num_rows, _ in MIXES}):
        yield _point("base", (num_rows, 1))
    for mix in MIXES:
        yield _point("own", mix)
        yield _point("joined", mix)


@dataclass(frozen=True)
class Projection:
    """One projection group of one layer.

    Attributes:
        weight: [out + slots * slices * R, in], the base's rows and below them the A of all slots.
        group: None in the way without adapters.
    """

    lora: LoraInputs
    weight: Tensor
    group: AdapterGroup | None
    rows: AdapterRows
    name: str

    def call(self) -> Tensor:
        """All launches: qkv alone, gate and up with the activation, o and down with the residual sum and the norm."""
        base, x = Linear(self._base), self.lora.x
        if self.name == "gate_up":
            return KERNELS.gate(base, x, self.group, self.rows)
        if self.name == "qkv":
            return KERNELS.project(base, x, self.group, self.rows)
        return KERNELS.project_norm(base, x, self.lora.y, self._norm, self.group, self.rows)[1]

    def check(self) -> None:
        """Against base product and adapters one after another."""
        expected = functional.linear(self.lora.x, self._base).float()
        if self.group is not None:
            expected = self.lora.expected_y(expected, self.lora.expected_h())
        if self.name == "gate_up":
            expected = silu_mul(expected)
        elif self.name != "qkv":
            total = (expected + self.lora.y.float()).to(self.lora.y.dtype)
            expected = rms_norm(total, *self._norm)[0].float()
        assert_near(self.call(), expected)

    @property
    def num_bytes(self) -> int:
        """Weights, with those of all slots that the product takes along, or else of those used."""
        if self.group is None:
            return self._base.nbytes
        joined = self.weight.nbytes if self.rows.num_joined else self._base.nbytes + self.lora.bytes_of_a
        return joined + self.lora.bytes_of_b

    @property
    def _norm(self) -> Norm:
        return Norm(self.weight[0, : self.lora.y.shape[1]], 1e-5)

    @property
    def _base(self) -> Tensor:
        return self.weight[: sum(self.lora.slice_sizes)]


def make_projection(way: str, name: str, mix: Mix) -> Projection:
    """Random weights; the bank has the slots that the joined product takes along."""
    num_slots = next(count for count in JOINED if count >= mix[1])
    lora = make_inputs(name, mix, num_slots=num_slots)
    in_features, slice_sizes = GROUPS[name]
    base = torch.randn(sum(slice_sizes), in_features, device=lora.x.device, dtype=lora.x.dtype) / in_features**0.5
    weight = torch.cat([base, lora.a.view(-1, in_features)])
    group = AdapterGroup(lora.a, lora.b, lora.ranks, lora.scales, Linear(weight), lora.h.view(-1), slice_sizes)
    rows = AdapterRows(lora.segments, lora.chunk_size, num_slots if way == "joined" else 0, [])
    return Projection(lora, weight, None if way == "base" else group, rows, name)


def _point(way: str, mix: Mix) -> Point:
    projections = [make_projection(way, name, mix) for _ in range(NUM_LAYERS) for name in GROUPS]

    def call() -> None:
        for projection in projections:
            projection.call()

    def check() -> None:
        for projection in projections[: len(GROUPS)]:
            projection.check()

    about = {"rows": mix[0]} if way == "base" else projections[0].lora.parameters
    return Point("lora_layers", {"way": way, **about}, call, check, sum(each.num_bytes for each in projections))
