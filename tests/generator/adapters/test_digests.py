"""Who an adapter is: by content as the bank holds it; and what of it is in cached keys and values."""

import hashlib
import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from services.generator.adapters.peft_folder import load_adapter
from shared.errors import InvalidRequestError
from tests.generator.adapters.conftest import ALL, make_adapter, target_of
from tests.shared.modeling.tiny_decoder import save_tiny

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers`:UserWarning"),
]
WEIGHTS = "adapter_model.safetensors"
PARTS = [f"self_attn.{name}" for name in ALL[:4]] + [f"mlp.{name}" for name in ALL[4:]]
MODULES = [f"model.layers.{layer}.{part}" for layer in (0, 1) for part in PARTS] + ["model.embed_tokens", "lm_head"]
LAST = ["model.layers.1.self_attn.q_proj", "model.layers.1.self_attn.o_proj", "model.layers.1.mlp.gate_proj"]
LAST += ["model.layers.1.mlp.up_proj", "model.layers.1.mlp.down_proj", "lm_head"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    root = tmp_path_factory.mktemp("peft")
    save_tiny(root / "base", "llama")
    make_adapter(root / "base", root / "adapter", target_modules=[*ALL, "embed_tokens", "lm_head"])
    return root / "adapter", root / "base"


@pytest.fixture
def folder(made, tmp_path):
    return shutil.copytree(made[0], tmp_path / "adapter")


@pytest.fixture
def target(made):
    return target_of(made[1])


def change(folder, edit):
    tensors = load_file(folder / WEIGHTS)
    edit(tensors)
    save_file(tensors, folder / WEIGHTS)


def set_keys(folder, **keys):
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **keys}))


def of_module(tensors, module):
    """Its B."""
    return next(tensor for name, tensor in tensors.items() if f".{module}.lora_" in name and "_B" in name)


def digests(folder, target):
    adapter = load_adapter(folder, target)
    return adapter.digest, adapter.kv_digest


@pytest.mark.parametrize("module", MODULES)
def test_the_last_bit_of_any_module_is_part_of_the_digest(folder, target, module):
    """And of the KV digest unless it is the head or comes after the last layer's keys and values."""
    before = digests(folder, target)
    change(folder, lambda tensors: of_module(tensors, module).view(-1)[-1:].view(torch.int32).bitwise_xor_(1))
    after = digests(folder, target)
    assert after[0] != before[0]
    assert (after[1] == before[1]) == (module in LAST)


@pytest.mark.parametrize("module", MODULES)
def test_without_an_influencing_module_there_is_no_kv_digest(folder, target, module):
    def keep(tensors):
        for name in list(tensors):
            if f".{module}.lora_" not in name:
                del tensors[name]

    change(folder, keep)
    digest, kv_digest = digests(folder, target)
    assert (kv_digest is None) == (module in LAST)
    assert kv_digest in (None, digest)


def test_equal_weights_under_two_names_and_spellings_have_equal_digests(folder, target, tmp_path):
    """Order of tensors, precision of the file, way of writing the rank: none of it is in the bank."""
    other = shutil.copytree(folder, tmp_path / "another_name")
    change(other, lambda tensors: [tensors.update({name: tensors.pop(name)}) for name in sorted(tensors, reverse=True)])
    set_keys(other, r=99, lora_alpha=198, rank_pattern={".*": 4}, alpha_pattern={".*": 8}, revision="main")
    assert digests(other, target) == digests(folder, target)


def test_a_bank_of_another_dtype_holds_another_adapter(folder, made):
    found = {digests(folder, target_of(made[1], dtype))[0] for dtype in (torch.float32, torch.bfloat16, torch.float16)}
    assert len(found) == 3


def test_what_a_cast_rounds_away_is_not_in_the_bank(folder, made):
    target = target_of(made[1], torch.bfloat16)
    before = digests(folder, target)
    change(folder, lambda tensors: tensors.update({k: v.bfloat16() for k, v in tensors.items() if "lora_" in k}))
    assert digests(folder, target) == before


def test_the_scale_counts_by_itself(folder, target):
    """Twice the scale and half of B come to the same, but are not held as the same."""
    before = digests(folder, target)
    set_keys(folder, lora_alpha=16)
    doubled = digests(folder, target)
    change(folder, lambda tensors: [of_module(tensors, module).mul_(0.5) for module in MODULES])
    halved = digests(folder, target)
    assert len({before[0], doubled[0], halved[0]}) == len({before[1], doubled[1], halved[1]}) == 3


def test_a_module_whose_b_is_zero_counts_as_present(folder, target):
    def keep(tensors):
        for name in list(tensors):
            if ".layers.0.self_attn.k_proj.lora_" not in name:
                del tensors[name]
            elif "lora_B" in name:
                tensors[name].zero_()

    change(folder, keep)
    assert digests(folder, target)[1] is not None


def test_each_tensor_is_hashed_once(folder, target, monkeypatch):
    """Both digests come from one pass: bytes hashed are those of the tensors and little else."""
    real, hashed = hashlib.sha256, []

    class Counting:
        def __init__(self, data=b""):
            self._inner = real(data)

        def update(self, data):
            hashed.append(memoryview(data).nbytes)
            self._inner.update(data)

        def digest(self):
            return self._inner.digest()

    monkeypatch.setattr(hashlib, "sha256", Counting)
    report = load_adapter(folder, target).report
    assert report.num_bytes <= sum(hashed) <= report.num_bytes + 8 * len(report.modules)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_values_that_the_cast_makes_infinite_are_refused(folder, made, dtype):
    change(folder, lambda tensors: of_module(tensors, "model.layers.0.mlp.up_proj").fill_(3.4e38))
    load_adapter(folder, target_of(made[1]))
    with pytest.raises(InvalidRequestError, match=r"layers\.0\.mlp\.up_proj: has values that are not finite"):
        load_adapter(folder, target_of(made[1], dtype))
