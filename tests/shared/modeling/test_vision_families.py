"""The decoder's part of a vision-language folder: its config, nested, and its tensors beside those of the tower."""

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from shared.modeling.config import read_decoder_config
from shared.modeling.decoder_loader import load_decoder
from shared.modeling.vision_families import text_config
from shared.settings.errors import ModelFolderError
from shared.settings.model_folder import read_json
from tests.fakes.tiny_vision import AS_BEFORE_5, AS_SINCE_4_52, rename_tensors, save_tiny_llava
from tests.shared.modeling.tiny_decoder import CLASSES

CPU = torch.device("cpu")
LLAVA = {"architectures": ["LlavaForConditionalGeneration"], "model_type": "llava"}


def load(folder):
    return load_decoder(folder, read_decoder_config(read_json(folder / "config.json")), torch.float32, CPU)


def all_equal(some, others):
    return all(torch.equal(one, other) for one, other in zip(some.tensors(), others.tensors(), strict=True))


@pytest.mark.parametrize("family", CLASSES)
def test_what_a_nested_config_leaves_out_is_what_transformers_leaves_out(family):
    """llava-1.5's config.json has no sizes at all: they are those of the configuration class."""
    theirs = CLASSES[family][0]()
    ours = read_decoder_config({**LLAVA, "text_config": {"model_type": family}})
    assert ours.architecture == CLASSES[family][1].__name__
    assert (ours.hidden_size, ours.intermediate_size) == (theirs.hidden_size, theirs.intermediate_size)
    assert (ours.num_layers, ours.num_heads) == (theirs.num_hidden_layers, theirs.num_attention_heads)
    assert (ours.vocab_size, ours.num_kv_heads) == (theirs.vocab_size, theirs.num_key_value_heads)
    assert ours.context_len == theirs.max_position_embeddings
    assert ours.has_tied_head == theirs.tie_word_embeddings


def test_keys_of_the_whole_model_hold_for_the_decoder(tmp_path):
    nested = {
        "architectures": ["MistralForCausalLM"],
        "model_type": "unknown",
        "torch_dtype": "float32",
        "eos_token_id": 1,
    }
    outer = {**LLAVA, "dtype": "bfloat16", "eos_token_id": 7, "tie_word_embeddings": True, "hidden_size": 3}
    config = text_config({**outer, "text_config": nested})
    assert config["eos_token_id"] == 7
    assert config["hidden_size"] == 4096  # the outer one is of something else
    decoder = read_decoder_config({**outer, "text_config": nested})
    assert (decoder.architecture, decoder.dtype, decoder.has_tied_head) == ("MistralForCausalLM", "bfloat16", True)
    with pytest.raises(ModelFolderError, match="quantization_config"):
        read_decoder_config({**outer, "text_config": nested, "quantization_config": {"quant_method": "awq"}})


@pytest.mark.parametrize(
    ("text", "named"),
    [(None, r"decoder \(none\)"), ({"model_type": "phi3"}, "decoder phi3"), ("llama", "not an object")],
)
def test_a_decoder_that_is_not_known_is_refused_by_name(text, named):
    with pytest.raises(ModelFolderError, match=named):
        text_config({**LLAVA, "text_config": text})


def test_a_text_model_s_config_is_left_as_it_is():
    config = {"architectures": ["LlamaForCausalLM"], "text_config": {"hidden_size": 1}}
    assert text_config(config) is config


@pytest.mark.parametrize("is_tied", [False, True])
def test_the_decoder_s_tensors_are_found_under_every_naming(tmp_path, is_tied):
    folder = save_tiny_llava(tmp_path, text={"tie_word_embeddings": is_tied})
    weights = load(folder)
    model = transformers.LlavaForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
    theirs = model.model.language_model
    assert torch.equal(weights.embedding, theirs.embed_tokens.weight)
    assert torch.equal(weights.head, model.lm_head.weight)
    assert (weights.head is weights.embedding) == is_tied
    assert torch.equal(weights.layers[1].down.weight, theirs.layers[1].mlp.down_proj.weight)
    assert torch.equal(weights.final_norm, theirs.norm.weight)
    for renamings in (AS_BEFORE_5, AS_SINCE_4_52):
        rename_tensors(folder, *renamings)
        assert all_equal(load(folder), weights)


@pytest.mark.parametrize("name", ["language_model.model.layers.9.mlp.up_proj.weight", "audio_tower.conv.weight"])
def test_what_is_neither_the_decoder_s_nor_the_tower_s_is_refused_by_name(tmp_path, name):
    folder = save_tiny_llava(tmp_path)
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, name: torch.zeros(1)}, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelFolderError, match=f"such as {name}"):
        load(folder)


def test_a_text_model_has_no_tower_s_tensors(tmp_path):
    folder = save_tiny_llava(tmp_path)
    nested = read_json(folder / "config.json")["text_config"]
    (folder / "config.json").write_text(json.dumps({**nested, "architectures": ["LlamaForCausalLM"]}))
    rename_tensors(folder, (r"^language_model\.", ""))
    with pytest.raises(ModelFolderError, match="such as multi_modal_projector"):
        load(folder)
