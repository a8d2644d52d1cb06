"""`rope_kv_write` against its oracle, and the oracle against complex multiplication in fp64."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from services.generator.kernels.arguments import KernelArgumentError
from services.generator.kernels.reference import rope_kv_write as reference
from services.generator.kernels.rope_kv_write import rope_kv_write
from tests.kernels.guards import Guarded
from tests.kernels.replay import capture
from tests.kernels.tolerances import assert_close

NUM_SLOTS = 48


@dataclass
class Case:
    """Inputs of one layer."""

    qkv: Tensor
    table_rows: Tensor
    slot_mapping: Tensor
    q_norm: Tensor
    k_norm: Tensor
    shape: tuple[int, int, int]  # Hq, Hkv, D

    def options(self, kind: str) -> tuple[Tensor | None, ...]:
        """What comes after `qkv`."""
        norms = (self.q_norm, self.k_norm) if kind == "norm" else (None, None)
        return None if kind == "no rope" else self.table_rows, self.slot_mapping, *norms


def make_case(num_tokens: int, shape: tuple[int, int, int], place: tuple[str, torch.dtype]) -> Case:
    device, dtype = place
    heads, kv_heads, dim = shape
    angles = torch.rand(num_tokens, dim // 2) * 7
    slots = torch.randperm(NUM_SLOTS)[:num_tokens]
    slots[num_tokens // 2] = -1 if num_tokens > 1 else slots[0]
    return Case(
        qkv=torch.randn(num_tokens, (heads + 2 * kv_heads) * dim).to(device, dtype),
        table_rows=torch.cat([angles.cos(), angles.sin()], dim=1).to(device),
        slot_mapping=slots.to(device),
        q_norm=torch.randn(dim).to(device, dtype),
        k_norm=torch.randn(dim).to(device, dtype),
        shape=shape,
    )


def expected_of(case: Case, kind: str) -> tuple[Tensor, Tensor, Tensor]:
    """Queries and keys, and both caches in fp32, NaN where nothing is written."""
    heads, kv_heads, dim = case.shape
    rotated = torch.full((len(case.qkv), heads + kv_heads, dim), torch.nan, device=case.qkv.device)
    keys, values = (torch.full((NUM_SLOTS, kv_heads, dim), torch.nan, device=case.qkv.device) for _ in range(2))
    table_rows, slot_mapping, *norms = case.options(kind)
    norms = [None if norm is None else norm.float() for norm in norms]
    reference.rope_kv_write(rotated, keys, values, case.qkv.float(), table_rows, slot_mapping, *norms, eps=1e-6)
    return rotated, keys, values


def test_the_oracle_against_complex_numbers():
    case = make_case(5, (4, 2, 12), ("cpu", torch.float32))
    rotated, keys, values = expected_of(case, "rope")
    heads = case.qkv.view(5, 8, 12)
    turned = (
        torch.complex(*heads[:, :6].double().chunk(2, dim=2))
        * torch.complex(*case.table_rows.double().chunk(2, 1))[:, None]
    )
    expected = torch.cat([turned.real, turned.imag], dim=2)
    assert (rotated - expected[:, :6]).abs().max() < 1e-5
    for token, slot in enumerate(case.slot_mapping.tolist()):
        if slot >= 0:
            assert (keys[slot] - expected[token, 4:]).abs().max() < 1e-5
            assert torch.equal(values[slot], heads[token, 6:])
    assert int(keys.isnan().all(dim=(1, 2)).sum()) == NUM_SLOTS - 4


@pytest.mark.parametrize("kind", ["rope", "no rope", "norm"])
@pytest.mark.parametrize(
    ("num_tokens", "shape"), [(1, (1, 1, 2)), (5, (4, 2, 64)), (3, (9, 3, 64)), (2, (7, 1, 80)), (4, (16, 4, 128))]
)
def test_ragged_sizes(num_tokens, shape, kind, place):
    device, dtype = place
    heads, kv_heads, dim = shape
    case = make_case(num_tokens, shape, place)
    rotated = Guarded(num_tokens, heads + kv_heads, dim, dtype=dtype, device=device)
    keys, values = (Guarded(NUM_SLOTS, kv_heads, dim, dtype=dtype, device=device) for _ in range(2))
    rope_kv_write(rotated.tensor, keys.tensor, values.tensor, case.qkv, *case.options(kind), eps=1e-6)
    for guarded, expected in zip((rotated, keys, values), expected_of(case, kind), strict=True):
        guarded.assert_untouched(expected.isnan())
        is_written = ~expected.isnan()
        assert_close(guarded.tensor[is_written], expected[is_written], slack=4 if dtype == torch.float32 else 1)


def test_queries_and_keys_in_place(place):
    device, dtype = place
    case = make_case(3, (4, 2, 64), place)
    expected = expected_of(case, "rope")[0]
    keys, values = torch.zeros(2, NUM_SLOTS, 2, 64, dtype=dtype, device=device)
    given = case.qkv.view(3, 8, 64)[:, 6:].clone()
    rotated, own_values = case.qkv.view(3, 8, 64).split([6, 2], dim=1)
    rope_kv_write(rotated, keys, values, case.qkv, *case.options("rope"))
    assert torch.equal(own_values, given)
    assert_close(rotated, expected, slack=4 if dtype == torch.float32 else 1)


@pytest.mark.gpu
def test_a_graph_replays_with_other_slots(cuda):
    case = make_case(40, (32, 8, 128), (cuda, torch.bfloat16))
    rotated = torch.empty(40, 40, 128, device=cuda, dtype=torch.bfloat16)
    keys, values = torch.empty(2, NUM_SLOTS, 8, 128, device=cuda, dtype=torch.bfloat16)
    graph = capture(lambda: rope_kv_write(rotated, keys, values, case.qkv, *case.options("rope")))
    other = make_case(40, (32, 8, 128), (cuda, torch.bfloat16))
    case.qkv.copy_(other.qkv)
    case.table_rows.copy_(other.table_rows)
    case.slot_mapping.copy_(other.slot_mapping)
    graph.replay()
    for out, expected in zip((rotated, keys, values), expected_of(case, "rope"), strict=True):
        is_written = ~expected.isnan()
        assert_close(out[is_written], expected[is_written])


def test_arguments_are_checked(place):
    device, dtype = place
    case = make_case(3, (4, 2, 64), place)
    rotated = torch.empty(3, 6, 64, dtype=dtype, device=device)
    keys, values = torch.zeros(2, NUM_SLOTS, 2, 64, dtype=dtype, device=device)
    table_rows, slots, *_ = case.options("rope")
    with pytest.raises(KernelArgumentError, match="qkv has the shape"):
        rope_kv_write(rotated, keys, values, case.qkv[:, 1:], table_rows, slots)
    with pytest.raises(KernelArgumentError, match="slot_mapping is"):
        rope_kv_write(rotated, keys, values, case.qkv, table_rows, slots.int())
    with pytest.raises(KernelArgumentError, match="both or not at all"):
        rope_kv_write(rotated, keys, values, case.qkv, table_rows, slots, case.q_norm)
