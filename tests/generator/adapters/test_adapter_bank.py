"""What slots of the bank hold after copies, on a CPU; `tests/gpu/test_adapter_copies.py` has what streams add to it."""

import pytest
import torch

from services.generator.adapters.peft_folder import load_adapter
from services.generator.core.specs import AdapterBankSpec
from services.generator.runner.adapter_bank import AdapterBank
from shared.modeling.decoder import linear
from tests.generator.adapters.conftest import ALL, groups_of, make_adapter, target_of, weights_of

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers`:UserWarning"),
    pytest.mark.filterwarnings("ignore:Model .*tie_word_embeddings=True:UserWarning"),
]
OPTIONS = [
    {"r": 8, "target_modules": [*ALL, "embed_tokens", "lm_head"]},
    {"r": 3, "rank_pattern": {"k_proj": 1, "layers.1.mlp.down_proj": 7}},
    {"r": 5, "target_modules": ["v_proj", "o_proj"], "layers_to_transform": [1]},
]


@pytest.fixture(scope="module")
def target(tied):
    return target_of(tied)


@pytest.fixture(scope="module")
def adapters(tied, target, tmp_path_factory):
    """On everything, of several ranks, and on a part of the last layer alone."""
    made = tmp_path_factory.mktemp("adapters")
    folders = [make_adapter(tied, made / str(seed), seed=seed, **each) for seed, each in enumerate(OPTIONS)]
    return [load_adapter(folder, target) for folder in folders]


def check_slot(bank, slot, adapter, target):
    """Every group reads as the adapter packed it, up to each slice's rank, beyond which nobody reads."""
    expected = groups_of(adapter, target)
    for name, stack in target.banked_stacks().items():
        for key in stack.keys:
            group, packed = bank.group(key), expected.get(key)
            if packed is None:
                assert not group.ranks[slot].any(), f"{name} is left over from before"
                continue
            assert torch.equal(group.ranks[slot], packed.ranks)
            assert torch.equal(group.scales[slot], packed.scales)
            rows = torch.split(group.b[slot], list(group.slice_sizes))
            packed_rows = torch.split(packed.b, list(group.slice_sizes))
            for index, rank in enumerate(packed.ranks.tolist()):
                assert torch.equal(group.a[slot, index, :rank], packed.a[index, :rank])
                assert torch.equal(rows[index][:, :rank], packed_rows[index][:, :rank])


def test_a_slot_holds_the_last_adapter_and_the_others_theirs(adapters, target):
    bank = AdapterBank(target.banked_stacks(), AdapterBankSpec(3, 8, 16), weights_of(target))
    holds = {}
    for slot, index in [(0, 0), (1, 1), (2, 2), (1, 0), (0, 1), (1, 2), (2, 1), (0, 2)]:
        bank.install(slot, adapters[index])
        holds[slot] = index
        for each, held in holds.items():
            check_slot(bank, each, adapters[held], target)


@pytest.mark.parametrize("num_slots", [1, 2, 3])
def test_one_product_gives_a_projection_and_the_narrow_side_of_the_first_slots(base, num_slots, tmp_path):
    """Also of a family whose projections have biases, which that side has not."""
    target = target_of(base)
    plain, weights = weights_of(target), weights_of(target)
    bank = AdapterBank(target.banked_stacks(), AdapterBankSpec(3, 8, 16), weights)
    for slot in range(3):  # different ones, so that their order counts
        bank.install(slot, load_adapter(make_adapter(base, tmp_path / str(slot), seed=slot, r=8), target))
    for level, (before, after) in enumerate(zip(plain.layers, weights.layers, strict=True)):
        for name in ("qkv", "o", "gate_up", "down"):
            group, was, now = bank.group((level, name)), getattr(before, name), getattr(after, name)
            assert torch.equal(now.weight, was.weight)
            assert now.weight.data_ptr() == group.joined.weight.data_ptr()
            x = torch.randn(5, was.weight.shape[1])
            out = linear(group.joined_with(num_slots), x)
            narrow = torch.einsum("ti,sjri->tsjr", x, group.a[:num_slots])
            torch.testing.assert_close(out, torch.cat([linear(was, x), narrow.flatten(1)], dim=1))


def test_groups_stay_where_they_are_and_are_alike_to_kernels(adapters, target):
    """A graph has their addresses; entries of a group begin at 16 bytes, or a kernel would be compiled for each way they lie."""
    bank = AdapterBank(target.banked_stacks(), AdapterBankSpec(3, 8, 16), weights_of(target))
    keys = [key for stack in target.banked_stacks().values() for key in stack.keys]

    def addresses():
        groups = [bank.group(key) for key in keys]
        return [tensor.data_ptr() for group in groups for tensor in (group.a, group.b, group.ranks, group.scales)]

    before = addresses()
    bank.install(1, adapters[1])
    assert addresses() == before
    assert len(set(before)) == len(before)
    assert all(bank.group(key).ranks.data_ptr() % 16 == bank.group(key).scales.data_ptr() % 16 == 0 for key in keys)


def test_an_adapter_takes_the_host_memory_of_its_own_layers_and_ranks(adapters, target):
    """One layer's v and o at rank 5: fused with q and k, whose B it fills with zeros."""
    shapes, (_, _, narrow) = target.shapes, adapters
    values = sum(5 * (len(s.modules) * s.in_features + s.out_features) for s in (shapes["qkv"], shapes["o"]))
    assert narrow.num_bytes == 4 * values + narrow.table.nbytes
