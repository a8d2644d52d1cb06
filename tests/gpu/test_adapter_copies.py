"""Copies of adapters into slots beside the steps: late copies mix nothing up, and each of the two waits is needed for that."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from services.generator.adapters.peft_folder import load_adapter
from services.generator.core.specs import AdapterBankSpec
from services.generator.runner.adapter_bank import AdapterBank
from services.generator.runner.copy_order import StreamOrder
from services.generator.runner.step_graphs import StepGraphs
from tests.generator.adapters.conftest import groups_of, target_of, weights_of
from tests.gpu.adapter_churn import NUM_ADAPTERS, churn, errors, prepare

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.alone,  # another process would take turns with what is late here
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),
]
LATE = 50_000_000
"""Cycles, some 25 ms: many steps of the tiny model."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return prepare(tmp_path_factory.mktemp("churn"))


@pytest.fixture
def late_copies(monkeypatch):
    """Copies that begin late on the stream that they are launched on; answers what is done so, by name."""
    counts = {"copies": 0, "replays": 0}
    install, replay = AdapterBank.install, StepGraphs.replay

    def install_late(bank, slot, adapter):
        counts["copies"] += 1
        torch.cuda._sleep(LATE)
        install(bank, slot, adapter)

    def replay_counted(graphs, plan):
        outputs = replay(graphs, plan)
        counts["replays"] += outputs is not None
        return outputs

    monkeypatch.setattr(AdapterBank, "install", install_late)
    monkeypatch.setattr(StepGraphs, "replay", replay_counted)
    return counts


def test_late_copies_mix_nothing_up(folder, late_copies):
    answers = churn(folder, "cuda")
    assert late_copies["copies"] > NUM_ADAPTERS, "no adapter had to come back to the bank"
    assert late_copies["replays"] > 20
    assert max(errors(folder, answers)) < 1e-3


def test_the_check_sees_it_when_steps_do_not_wait_for_copies(folder, late_copies, monkeypatch):
    monkeypatch.setattr(StreamOrder, "_wait_for_copies", lambda order, slots: None)
    assert max(errors(folder, churn(folder, "cuda"))) > 0.1
    assert late_copies["copies"] > 0


@pytest.mark.parametrize("waits", [True, False], ids=["as it is", "without the wait"])
def test_a_copy_waits_for_the_last_reader_of_its_slot_alone(folder, monkeypatch, waits):
    """A late reader of slot 0 still sees what was there; what it says nothing of, slot 1, is copied before it begins."""
    if not waits:
        monkeypatch.setattr(StreamOrder, "_wait_for_readers", lambda order, slot: None)
    target, device = replace(target_of(folder / "base"), is_pinned=True), torch.device("cuda")
    before, after = (load_adapter(folder / "root" / name, target) for name in ("a1", "a2"))
    assert all(tensor.is_pinned() for each in after.stacks.values() for tensor in (each.a, each.b))
    bank = AdapterBank(target.banked_stacks(), AdapterBankSpec(2, 8, 16), weights_of(target, device))
    order, slots = StreamOrder(device), np.array([0, -1], np.int32)
    for slot in range(2):
        with order.copying(slot):
            bank.install(slot, before)
    order.begin_reading(slots)
    group = bank.group((0, "qkv"))
    seen = [group.a.clone(), group.ranks.clone()]
    torch.cuda.synchronize()  # and what a first launch makes the host wait for is done
    torch.cuda._sleep(4 * LATE)
    seen[0].copy_(group.a)
    seen[1].copy_(group.ranks)
    order.end_reading(slots)
    for slot in (1, 0):
        with order.copying(slot):
            bank.install(slot, after)
    torch.cuda.synchronize()
    old, new = (groups_of(each, target)[0, "qkv"] for each in (before, after))
    for slot, expected in enumerate((old if waits else new, new)):
        rank = int(expected.ranks[0])
        assert torch.equal(seen[1][slot].cpu(), expected.ranks)
        assert torch.equal(seen[0][slot, :, :rank].cpu(), expected.a)
    assert order.seconds() > 0
