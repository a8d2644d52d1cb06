"""The GPU benchmark's table and the figure that it is made of."""

from collections import Counter

import pytest
from safetensors.torch import load_file

from benchmarks.gpu.decode import in_turn, step_ms
from benchmarks.gpu.model import TINY, write_adapters
from benchmarks.gpu.rows import BANKS


def test_every_row_has_a_name_of_its_own_and_adapters_that_its_bank_has():
    assert max(Counter(name for bank in BANKS for name in bank.names).values()) == 1
    for bank in BANKS:
        for row in (*bank.decodes, *bank.prefills):
            assert set(row.adapters) <= set(bank.ranks)
        assert all(row.num_rows <= bank.max_rows for row in bank.decodes)


def test_ranks_are_compared_over_as_many_adapters():
    rows = [row for row in BANKS[-1].decodes if "in a bank of rank 64" in row.name]
    assert {len(set(row.adapters)) for row in rows} == {4}
    used = [[BANKS[-1].ranks[name] for name in row.adapters] for row in rows]
    assert sorted(used) == [[8] * 4, [8, 16, 32, 64], [16] * 4, [32] * 4, [64] * 4]


def test_a_step_is_what_each_further_token_costs():
    prompts_s, further_s = 0.7, 0.003
    assert step_ms(lambda num_tokens: prompts_s + (num_tokens - 1) * further_s) == pytest.approx([3] * 3)


def test_adapters_are_spread_in_turn():
    assert in_turn(["a", "b", "c"], 5) == ["a", "b", "c", "a", "b"]
    assert in_turn([], 2) == [None, None]


def test_adapters_are_drawn_each_for_itself_and_of_its_rank(tmp_path):
    assert write_adapters(tmp_path, TINY, {"a": 4, "b": 4, "c": 8}) == [f"{name}={tmp_path / name}" for name in "abc"]
    a, b, c = (load_file(tmp_path / name / "adapter_model.safetensors") for name in "abc")
    assert len(a) == 2 * 7 * TINY["num_hidden_layers"]
    for name, values in a.items():
        (rank,) = set(values.shape) & {4}
        assert values.float().std().item() == pytest.approx(0.3 * values.shape[1] ** -0.5, rel=0.2)
        assert not values.eq(b[name]).all()
        assert c[name].numel() * rank == values.numel() * 8
