"""What `TritonKernels` makes of a projection and its adapters, at sizes where the product is ours, against the formulas in fp64."""

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from services.generator.kernels import skinny_linear as skinny
from services.generator.kernels.lora_segments import SegmentLayout
from services.generator.layers.adapter_group import AdapterGroup
from services.generator.layers.forward_batch import AdapterRows
from services.generator.layers.triton_kernels import TritonKernels
from shared.modeling.decoder import Linear, Norm
from tests.kernels.tolerances import assert_close

pytestmark = pytest.mark.gpu

WIDTH, SLOTS, RANK = 1024, 8, 16
KERNELS = TritonKernels()
EPS = 1e-5


@pytest.fixture
def launches(monkeypatch) -> list[str]:
    """Names of the kernels of ours that computed a product."""
    names: list[str] = []

    def noted(launch: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: Tensor) -> None:
            names.append(launch.__name__)
            launch(*arguments)

        return call

    for launch in (skinny.skinny_linear, skinny.skinny_silu_mul):
        monkeypatch.setattr(skinny, launch.__name__, noted(launch))
    return names


def random(*shape: int) -> Tensor:
    return torch.randn(shape, device="cuda").bfloat16()


def make_group(slices: int, columns: int) -> tuple[Linear, AdapterGroup]:
    """A projection with bias to as many slices, and 8 adapters of which one is of rank 5."""
    torch.manual_seed(0)
    base, a = random(columns * slices, WIDTH) * 0.03, random(SLOTS, slices, RANK, WIDTH) * 0.03
    ranks = torch.full((SLOTS, slices), RANK, dtype=torch.int32, device="cuda")
    ranks[3] = 5
    scales, bias = torch.rand(SLOTS, slices, device="cuda") + 0.5, random(columns * slices)
    joined = Linear(torch.cat([base, a.view(-1, WIDTH)]), torch.cat([bias, bias.new_zeros(SLOTS * slices * RANK)]))
    b, scratch = random(SLOTS, columns * slices, RANK) * 0.3, torch.zeros(64 * 64 * slices * RANK, device="cuda")
    group = AdapterGroup(a, b, ranks, scales, joined, scratch, (columns,) * slices)
    return Linear(base, bias), group


def exact(linear: Linear, group: AdapterGroup | None, x: Tensor, slots: Tensor) -> Tensor:
    """x Wᵀ + b, and (B A x) s of each row's adapter, slice by slice."""
    y = functional.linear(x.double(), linear.weight.double(), linear.bias.double())
    for row, slot in enumerate(slots.tolist() if group is not None else []):
        for index in range(group.a.shape[1] if slot >= 0 else 0):
            rank, columns = int(group.ranks[slot, index]), group.slice_sizes[index]
            where = slice(index * columns, (index + 1) * columns)
            a, b = group.a[slot, index, :rank].double(), group.b[slot, where, :rank].double()
            y[row, where] += b @ (a @ x[row].double()) * group.scales[slot, index].double()
    return y


WAYS = [(False, 0), (True, 0), (True, SLOTS)]
"""(whether rows have adapters, slots that the product takes along)."""


@pytest.mark.parametrize(("has_adapters", "num_joined"), WAYS)
@pytest.mark.parametrize("num_rows", [1, 16, 33, 64])
def test_projection_and_norm(num_rows, has_adapters, num_joined, launches):
    linear, group = make_group(1, 4096)
    x, residual, weight = random(num_rows, WIDTH), random(num_rows, 4096), random(4096)
    slots = torch.randint(-1, SLOTS, (num_rows,), dtype=torch.int32, device="cuda")
    rows = dataclasses.replace(KERNELS.rows_by_adapter(slots), num_joined=num_joined)
    total = residual.double() + exact(linear, group if has_adapters else None, x, slots)
    expected = functional.rms_norm(total, (4096,), weight.double(), EPS)
    used = (group, rows) if has_adapters else (None, None)
    summed, normed = KERNELS.project_norm(linear, x, residual, Norm(weight, EPS), *used)
    assert_close(summed, total.float(), slack=2)
    assert_close(normed, expected.float(), slack=2)
    assert launches == ["skinny_linear"]


@pytest.mark.parametrize(("has_adapters", "num_joined"), WAYS)
@pytest.mark.parametrize("num_rows", [1, 16, 33, 64])
def test_gate_and_up(num_rows, has_adapters, num_joined, launches):
    linear, group = make_group(2, 8192)
    x = random(num_rows, WIDTH)
    slots = torch.randint(-1, SLOTS, (num_rows,), dtype=torch.int32, device="cuda")
    rows = dataclasses.replace(KERNELS.rows_by_adapter(slots), num_joined=num_joined)
    gate, up = exact(linear, group if has_adapters else None, x, slots).chunk(2, dim=1)
    used = (group, rows) if has_adapters else (None, None)
    assert_close(KERNELS.gate(linear, x, *used), (functional.silu(gate) * up).float(), slack=4)
    assert launches == ["skinny_linear" if has_adapters else "skinny_silu_mul"]


@pytest.mark.parametrize("chunk_size", [1, 16])
def test_layers_of_a_graph_follow_one_another(chunk_size):
    """Each kernel begins while the one before it ends, on memory that the layer before used for the same."""
    linear, group = make_group(1, 4096)
    num_rows, layout = 64, SegmentLayout(64, SLOTS, chunk_size)
    slots = np.sort(np.arange(num_rows) % (SLOTS + 1) - 1).astype(np.int32)
    segments = layout.split(torch.from_numpy(layout.pack(slots)).cuda())
    rows, norm = AdapterRows(segments, chunk_size, SLOTS, []), Norm(random(4096), EPS)
    layers = [(random(num_rows, WIDTH), random(num_rows, 4096)) for _ in range(12)]

    def step() -> list[Tensor]:
        return [KERNELS.project_norm(linear, x, residual.clone(), norm, group, rows)[0] for x, residual in layers]

    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        sums = step()
    for _ in range(3):
        for x, _ in layers:
            x.normal_()
        graph.replay()
        for (x, residual), summed in zip(layers, sums, strict=True):
            total = residual.double() + exact(linear, group, x, segments.row_slots)
            assert_close(summed, total.float(), slack=2)
