"""What is packed against what `peft` would add to each weight, for each option of PEFT's configuration and two families."""

import pytest
import torch
from peft import PeftModel
from peft.tuners.lora import LoraLayer
from transformers import AutoModelForCausalLM

from services.generator.adapters.outline import inspect_adapter
from services.generator.adapters.peft_folder import load_adapter
from tests.generator.adapters.conftest import ALL, groups_of, make_adapter, target_of

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),  # peft asks transformers
    pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to True:UserWarning"),
    pytest.mark.filterwarnings("ignore:The following .*_pattern keys:RuntimeWarning"),  # parts of words, on purpose
    pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers`:UserWarning"),
    pytest.mark.filterwarnings("ignore:Model .*tie_word_embeddings=True:UserWarning"),
]
OPTIONS = {
    "plain": {},
    "rslora": {"use_rslora": True},
    "fan_in_fan_out": {"fan_in_fan_out": True},
    "patterns": {"rank_pattern": {"q_proj": 2, "layers.1.mlp.down_proj": 7}, "alpha_pattern": {"o_proj": 3}},
    "first_pattern_wins": {
        "rank_pattern": {r".*\.[qk]_proj": 6, "q_proj": 2},
        "alpha_pattern": {r"v_pro.": 1, "proj": 9},
    },
    "pattern_of_parts_only": {"rank_pattern": {"proj": 2, "n.q_proj": 3, "self_attn.k_proj": 5}},
    "rslora_with_patterns": {"use_rslora": True, "rank_pattern": {"mlp.*": 3}, "alpha_pattern": {"k_proj": 0.7}},
    "list": {"target_modules": ["v_proj", "up_proj"]},
    "dotted_suffix": {"target_modules": ["self_attn.q_proj", "mlp.gate_proj"]},
    "regex": {"target_modules": r".*layers\.1\.(self_attn|mlp)\.(q|o|down)_proj"},
    "all_linear": {"target_modules": "all-linear"},
    "exclude_list": {"exclude_modules": ["k_proj", "layers.0.mlp.up_proj"]},
    "exclude_regex": {"exclude_modules": r".*\.0\..*"},
    "layers": {"layers_to_transform": [1]},
    "layers_by_integer": {"layers_to_transform": 0, "layers_pattern": "layers"},
    "layers_by_pattern": {"layers_to_transform": [1], "layers_pattern": ["blocks", "lay.rs"]},
    "whole_name_beside_layers": {
        "layers_to_transform": [1],
        "target_modules": ["model.layers.0.mlp.up_proj", "q_proj"],
    },
    "embedding": {"target_modules": ["embed_tokens", "q_proj"], "rank_pattern": {"embed_tokens": 3}},
    "head": {"target_modules": ["lm_head"], "use_rslora": True},
    "everything": {"target_modules": [*ALL, "embed_tokens", "lm_head"]},
    "saved_but_untrained": {"modules_to_save": ["norm", "lm_head"]},
}


def deltas_of_peft(base, folder):
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), folder)
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, LoraLayer)}
    return {
        name.removeprefix("base_model.model."): layer.get_delta_weight("default").detach()
        for name, layer in layers.items()
    }


def deltas_of_ours(adapter, target):
    """Scale · B A of every module, from the packed form; what PEFT adds to an embedding is its transpose."""
    deltas, groups = {}, groups_of(adapter, target)
    for module, place in target.places().items():
        group = groups.get(place.key)
        if group is not None and group.ranks[place.index]:
            rows = torch.split(group.b, list(place.shape.slice_sizes))[place.index]
            delta = group.scales[place.index] * rows @ group.a[place.index]
            deltas[module] = delta.T if place.group == "embed" else delta
    return deltas


@pytest.mark.parametrize("option", OPTIONS)
def test_every_module_gets_what_peft_adds_to_it(base, tmp_path, option):
    folder, target = make_adapter(base, tmp_path / "adapter", **OPTIONS[option]), target_of(base)
    adapter = load_adapter(folder, target)
    ours, theirs = deltas_of_ours(adapter, target), deltas_of_peft(base, folder)
    assert ours.keys() == theirs.keys()
    for module, delta in theirs.items():
        assert delta.abs().max() > 0.01
        torch.testing.assert_close(ours[module], delta, rtol=1e-6, atol=1e-6)
    assert {item.module for item in adapter.report.modules} == theirs.keys()
    outlined = inspect_adapter(folder, target)
    assert (outlined.modules, outlined.num_bytes) == (adapter.report.modules, adapter.report.num_bytes)


@pytest.mark.parametrize("option", ["everything", "saved_but_untrained"])
def test_copies_of_base_weights_are_skipped_and_reported(base, tmp_path, option):
    adapter = load_adapter(make_adapter(base, tmp_path / "adapter", **OPTIONS[option]), target_of(base))
    skipped = {item.tensor.removeprefix("base_model.model."): item.reason for item in adapter.report.skipped}
    expected = {
        "everything": ("lm_head.base_layer.weight", "model.embed_tokens.base_layer.weight"),
        "saved_but_untrained": ("lm_head.weight", "model.norm.weight", "model.layers.0.input_layernorm.weight"),
    }
    assert set(expected[option]) <= skipped.keys()
    assert all(reason.startswith("is a copy of ") for reason in skipped.values())


@pytest.mark.parametrize("module", ["embed_tokens", "lm_head"])
def test_of_a_tied_pair_the_adapter_changes_only_the_one_it_is_on(tied, tmp_path, module):
    """From the base model and the packed tensors the logits of `peft`, the other one of the pair being the base's."""
    folder, target = make_adapter(tied, tmp_path / "adapter", target_modules=[module]), target_of(tied)
    ((key, group),) = groups_of(load_adapter(folder, target), target).items()
    assert key == (None, {"embed_tokens": "embed", "lm_head": "head"}[module])
    tokens = torch.tensor([[5, 17, 99, 200, 258]])
    base = AutoModelForCausalLM.from_pretrained(tied, dtype=torch.float32)
    weight = base.lm_head.weight.detach()
    a, b, scale = group.a[0], group.b, group.scales[0]
    with torch.inference_mode():
        inputs = weight[tokens] + (scale * a[:, tokens[0]].T @ b.T if module == "embed_tokens" else 0)
        hidden = base.model(inputs_embeds=inputs).last_hidden_state
        logits = hidden @ weight.T + (scale * (hidden @ a.T) @ b.T if module == "lm_head" else 0)
        theirs = PeftModel.from_pretrained(base, folder)(tokens).logits
    torch.testing.assert_close(logits, theirs, rtol=1e-5, atol=1e-5 * theirs.abs().max().item())
