"""What an adapter's folder may hold, and what is refused by name; identity by content."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from services.generator.adapters.modules import AdapterTarget, group_shapes
from services.generator.adapters.peft_folder import load_adapter
from shared.errors import InvalidRequestError
from shared.modeling.config import read_decoder_config
from tests.generator.adapters.conftest import make_adapter
from tests.shared.modeling.tiny_decoder import save_tiny

pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
A = "base_model.model.model.layers.{}.{}.lora_A.weight"
B = "base_model.model.model.layers.{}.{}.lora_B.weight"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    root = tmp_path_factory.mktemp("peft")
    save_tiny(root / "base", "llama")
    make_adapter(root / "base", root / "adapter")
    config = read_decoder_config(json.loads((root / "base" / "config.json").read_text()))
    return root / "adapter", AdapterTarget("base", config.num_layers, group_shapes(config), 8, torch.float32)


@pytest.fixture
def folder(made, tmp_path):
    return shutil.copytree(made[0], tmp_path / "adapter")


@pytest.fixture
def target(made):
    return made[1]


def set_keys(folder, **keys):
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **keys}))


def change(folder, edit):
    path = folder / "adapter_model.safetensors"
    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path)


def refused(folder, target):
    with pytest.raises(InvalidRequestError) as caught:
        load_adapter(folder, target)
    return caught.value


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("peft_type", "LOHA"),
        ("bias", "all"),
        ("use_dora", True),
        ("lora_bias", True),
        ("modules_to_save", ["lm_head"]),
        ("layer_replication", [[0, 2]]),
        ("trainable_token_indices", [1, 2]),
        ("target_parameters", ["x"]),
        ("alora_invocation_tokens", [1]),
        ("use_qalora", True),
        ("loftq_config", {"loftq_bits": 4}),
        *(("init_lora_weights", name) for name in ("pissa", "pissa_niter_4", "olora", "corda", "lora_ga", "loftq")),
        ("something_new", 3),
        ("r", 0),
        ("r", True),
        ("r", "4"),
        ("lora_alpha", -1),
        ("lora_alpha", float("inf")),
        ("rank_pattern", {"(": 2}),
        ("rank_pattern", [1]),
        ("alpha_pattern", {"q_proj": 0}),
        ("alpha_pattern", {"q_proj": 10**400}),
        ("use_rslora", "false"),
        ("base_model_name_or_path", 3),
        ("target_modules", None),
        ("target_modules", []),
        ("exclude_modules", "(unclosed"),
        ("use_bdlora", {"target_modules_bd_a": []}),
        ("megatron_config", {"tensor_model_parallel_size": 2}),
        ("something_new", 0),
        ("target_modules", {"a": 1}),
        ("target_modules", "(unclosed"),
        ("layers_to_transform", ["0"]),
        ("layers_pattern", "blocks"),
    ],
)
def test_what_is_not_reproduced_is_refused_by_its_key(folder, target, key, value):
    set_keys(folder, **{key: value})
    error = refused(folder, target)
    assert error.code == "invalid_request"
    assert error.param.split(".")[0] == key
    assert key in str(error)


def test_unknown_keys_that_say_nothing_are_taken(folder, target):
    set_keys(folder, new_null=None, new_false=False, new_empty={}, new_list=[], new_text="")
    load_adapter(folder, target)


@pytest.mark.parametrize("name", ["lm_head", "embed_tokens", "layers.7.mlp.up_proj", "layers.0.mlp.router"])
def test_a_tensor_without_a_place_is_refused_by_name(folder, target, name):
    key = f"base_model.model.model.{name}.lora_A.weight"
    change(folder, lambda tensors: tensors.update({key: torch.zeros(4, 64)}))
    assert key in str(refused(folder, target))


def test_a_module_that_the_configuration_leaves_out_is_refused(folder, target):
    set_keys(folder, target_modules=["q_proj"])
    assert "is not a LoRA tensor of a module that can be adapted" in str(refused(folder, target))


def test_an_a_without_its_b_is_refused(folder, target):
    change(folder, lambda tensors: tensors.pop(B.format(0, "mlp.up_proj")))
    assert "layers.0.mlp.up_proj: has lora_A without the other" in str(refused(folder, target))


@pytest.mark.parametrize("shape", [(4, 63), (5, 64), (4, 64, 1)])
def test_a_shape_that_does_not_fit_is_refused(folder, target, shape):
    key = A.format(1, "mlp.up_proj")
    change(folder, lambda tensors: tensors.update({key: torch.zeros(shape)}))
    assert "layers.1.mlp.up_proj: lora_A is" in str(refused(folder, target))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_are_not_finite_are_refused(folder, target, value):
    change(folder, lambda tensors: tensors[A.format(0, "mlp.up_proj")].fill_(value))
    assert "not finite" in str(refused(folder, target))


def test_integers_are_no_weights(folder, target):
    key = A.format(0, "mlp.up_proj")
    change(folder, lambda tensors: tensors.update({key: torch.zeros(4, 64, dtype=torch.int64)}))
    assert "I64" in str(refused(folder, target))


def test_pickled_weights_are_not_read(folder, target):
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    assert "pickled" in str(refused(folder, target))


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe"])
def test_a_broken_configuration_is_refused(folder, target, content):
    (folder / "adapter_config.json").write_bytes(content)
    assert refused(folder, target).param == "adapter_config.json" or "peft_type" in str(refused(folder, target))


@pytest.mark.parametrize("content", [b"", b"nonsense", b"\xff" * 64])
def test_broken_weights_are_refused(folder, target, content):
    (folder / "adapter_model.safetensors").write_bytes(content)
    assert refused(folder, target).param == "adapter_model.safetensors"


def rename(tensors, old, new):
    for key in list(tensors):
        tensors[key.replace(old, new)] = tensors.pop(key)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("base_model.model.", ""),
        (".lora_A.weight", ".lora_A.default.weight"),
        ("base_model.model.model.", "base_model.model."),
    ],
)
def test_the_ways_of_naming_a_tensor_mean_the_same(folder, target, old, new):
    before = load_adapter(folder, target)
    change(folder, lambda tensors: rename(tensors, old, new))
    assert load_adapter(folder, target).digest == before.digest


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_weights_are_taken(folder, target, dtype):
    change(folder, lambda tensors: tensors.update({key: tensor.to(dtype) for key, tensor in tensors.items()}))
    assert load_adapter(folder, target).stacks["o"].a.dtype == torch.float32


def digests(folder, target):
    adapter = load_adapter(folder, target)
    return adapter.digest, adapter.kv_digest


def test_equal_weights_are_one_identity_and_each_change_another(folder, target):
    first = digests(folder, target)
    assert digests(folder, target) == first
    change(folder, lambda tensors: tensors[A.format(0, "mlp.up_proj")].mul_(2))
    second = digests(folder, target)
    set_keys(folder, lora_alpha=9)
    third = digests(folder, target)
    assert len({first[0], second[0], third[0]}) == len({first[1], second[1], third[1]}) == 3


def test_only_what_comes_before_the_last_keys_and_values_is_part_of_the_kv_digest(folder, target):
    first = digests(folder, target)
    change(folder, lambda tensors: tensors[A.format(1, "mlp.up_proj")].mul_(2))
    second = digests(folder, target)
    assert second[0] != first[0]
    assert second[1] == first[1]
    change(folder, lambda tensors: tensors[A.format(1, "self_attn.v_proj")].mul_(2))
    assert digests(folder, target)[1] != first[1]


@pytest.mark.parametrize(("modules", "has_kv_digest"), [(["o_proj"], False), (["k_proj"], True)])
def test_an_adapter_of_the_last_layer_alone(folder, target, modules, has_kv_digest):
    def keep(tensors):
        for key in list(tensors):
            if ".layers.1." not in key or modules[0] not in key:
                del tensors[key]

    change(folder, keep)
    assert (load_adapter(folder, target).kv_digest is not None) == has_kv_digest


def test_another_base_is_a_warning(folder, target):
    set_keys(folder, base_model_name_or_path="someone/else")
    assert "someone/else" in load_adapter(folder, target).warnings[0]


def test_another_base_is_refused_where_that_is_asked_for(folder, target):
    strict = replace(target, is_strict_base=True)
    set_keys(folder, base_model_name_or_path="base")
    load_adapter(folder, strict)
    set_keys(folder, base_model_name_or_path="someone/else")
    assert refused(folder, strict).param == "base_model_name_or_path"


def test_a_rank_above_the_ceiling_is_refused(folder, target):
    load_adapter(folder, replace(target, max_rank=4))
    assert "has rank 4, above --max-lora-rank 3" in str(refused(folder, replace(target, max_rank=3)))


def test_no_matched_module_is_refused(folder, target):
    change(folder, lambda tensors: tensors.clear())
    assert "no module of the model matches" in str(refused(folder, target))


def test_modules_that_are_named_and_have_no_tensors_are_a_warning(folder, target):
    set_keys(folder, base_model_name_or_path=None)
    change(folder, lambda tensors: [tensors.pop(name.format(1, "mlp.up_proj")) for name in (A, B)])
    (warning,) = load_adapter(folder, target).warnings
    assert warning == "1 modules that target_modules names have no tensors, such as model.layers.1.mlp.up_proj"


def test_saved_modules_of_which_nothing_was_saved_are_refused(folder, target):
    set_keys(folder, modules_to_save=["norm"])
    assert str(refused(folder, target)) == "modules_to_save: names norm, of which the folder has no tensor"
