"""Every tensor of a folder in its place, whatever the layout of the files, and what stops the start."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from shared.modeling import decoder_loader
from shared.modeling.config import read_decoder_config
from shared.modeling.decoder_loader import load_decoder
from shared.settings.errors import ModelFolderError
from shared.settings.model_folder import read_json
from tests.fakes.recorder import record
from tests.shared.modeling.tiny_decoder import save_tiny

CPU = torch.device("cpu")
BIASES = {"attention_bias": True, "mlp_bias": True}


def load(folder, dtype=torch.float32, **changes):
    config = replace(read_decoder_config(read_json(folder / "config.json")), **changes)
    return load_decoder(folder, config, dtype, CPU)


def rewrite(folder, change):
    """Let `change` alter the dictionary of all tensors of an unsharded folder."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def edit_config(folder, **changes):
    config = read_json(folder / "config.json")
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


def flat(weights):
    """All values in one vector."""
    layers = [
        tensor
        for layer in weights.layers
        for tensor in (
            *(layer.input_norm, layer.post_norm, layer.q_norm, layer.k_norm),
            *(
                each
                for linear in (layer.qkv, layer.o, layer.gate_up, layer.down)
                for each in (linear.weight, linear.bias)
            ),
        )
        if tensor is not None
    ]
    return torch.cat([tensor.flatten() for tensor in (weights.embedding, *layers, weights.final_norm, weights.head)])


def test_projections_are_stacked_in_order(tmp_path):
    folder = save_tiny(tmp_path, "llama", **BIASES)
    weights = load(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for ours, theirs in zip(weights.layers, model.model.layers, strict=True):
        attention, mlp = theirs.self_attn, theirs.mlp
        qkv = (attention.q_proj, attention.k_proj, attention.v_proj)
        assert torch.equal(ours.qkv.weight, torch.cat([part.weight for part in qkv]))
        assert torch.equal(ours.qkv.bias, torch.cat([part.bias for part in qkv]))
        assert torch.equal(ours.gate_up.weight, torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]))
        assert torch.equal(ours.down.bias, mlp.down_proj.bias)
        assert torch.equal(ours.post_norm, theirs.post_attention_layernorm.weight)


def test_a_sharded_folder_gives_the_same_weights(tmp_path):
    whole = save_tiny(tmp_path / "whole", "qwen3")
    AutoModelForCausalLM.from_pretrained(whole).save_pretrained(tmp_path / "sharded", max_shard_size="60KB")
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 2
    assert torch.equal(flat(load(tmp_path / "sharded")), flat(load(whole)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_files_of_another_precision_are_converted(tmp_path, dtype):
    folder = save_tiny(tmp_path, "llama")
    wide = flat(load(folder))
    narrow = load(folder, dtype)
    assert narrow.embedding.dtype == dtype
    assert torch.equal(flat(narrow), wide.to(dtype))
    rewrite(folder, lambda tensors: tensors.update({name: tensor.to(dtype) for name, tensor in tensors.items()}))
    assert torch.equal(flat(load(folder)), wide.to(dtype).float())


def test_a_folder_saved_without_its_head_has_shorter_names(tmp_path):
    folder = save_tiny(tmp_path, "qwen3", tie_word_embeddings=True)
    before = flat(load(folder))

    def shorten(tensors):
        for name in list(tensors):
            tensors[name.removeprefix("model.")] = tensors.pop(name)

    rewrite(folder, shorten)
    assert torch.equal(flat(load(folder)), before)


def test_a_tied_head_is_the_embedding_and_counts_once(tmp_path):
    tied = load(save_tiny(tmp_path / "tied", "llama", tie_word_embeddings=True))
    untied = load(save_tiny(tmp_path / "untied", "llama"))
    assert tied.head is tied.embedding
    assert untied.num_bytes - tied.num_bytes == untied.head.nbytes
    assert untied.num_bytes == flat(untied).nbytes


def test_a_tied_head_that_is_stored_all_the_same(tmp_path, monkeypatch):
    folder = save_tiny(tmp_path, "llama", tie_word_embeddings=True)
    name = "model.embed_tokens.weight"
    rewrite(folder, lambda tensors: tensors.update({"lm_head.weight": tensors[name].clone()}))
    logs = record(monkeypatch, decoder_loader)
    weights = load(folder)
    assert weights.head is weights.embedding
    assert "head_not_tied" not in [line["event"] for line in logs]


def test_a_head_that_differs_though_declared_tied_counts_as_in_transformers(tmp_path, monkeypatch):
    folder = save_tiny(tmp_path, "llama")
    edit_config(folder, tie_word_embeddings=True)
    logs = record(monkeypatch, decoder_loader)
    weights = load(folder)
    theirs = AutoModelForCausalLM.from_pretrained(folder)
    assert torch.equal(weights.head, theirs.lm_head.weight)
    assert not torch.equal(weights.head, weights.embedding)
    assert "head_not_tied" in [line["event"] for line in logs]


def test_a_tied_embedding_may_be_stored_under_the_name_of_the_head(tmp_path):
    folder = save_tiny(tmp_path, "llama", tie_word_embeddings=True)
    before = flat(load(folder))
    rewrite(folder, lambda tensors: tensors.update({"lm_head.weight": tensors.pop("model.embed_tokens.weight")}))
    assert torch.equal(flat(load(folder)), before)


def test_frequencies_in_the_files_are_ignored(tmp_path):
    folder = save_tiny(tmp_path, "llama")
    before = flat(load(folder))
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    rewrite(folder, lambda tensors: tensors.update({name: torch.ones(8)}))
    assert torch.equal(flat(load(folder)), before)


def remove_keys_of_layer_1(tensors):
    for kind in ("weight", "bias"):
        del tensors[f"model.layers.1.self_attn.k_proj.{kind}"]


REFUSED = {
    "missing": (
        remove_keys_of_layer_1,
        r"2 tensors are missing, such as model\.layers\.1\.self_attn\.k_proj\.weight",
    ),
    "no_head": (lambda tensors: tensors.pop("lm_head.weight"), r"1 tensors are missing, such as lm_head\.weight"),
    "misshaped": (
        lambda tensors: tensors.update({"model.norm.weight": torch.ones(63)}),
        r"1 tensors have another shape than the config asks for, such as model\.norm\.weight: \[63\] instead of \[64\]",
    ),
    "unknown": (
        lambda tensors: tensors.update({"model.layers.0.self_attn.q_norm.weight": torch.ones(16)}),
        r"1 tensors are not part of LlamaForCausalLM, such as model\.layers\.0\.self_attn\.q_norm\.weight",
    ),
    "quantised": (
        lambda tensors: tensors.update({"model.norm.weight": torch.ones(64, dtype=torch.int8)}),
        r"1 tensors are stored in a precision that is not supported, such as model\.norm\.weight: I8",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_folder_that_does_not_fit_is_refused_by_name(tmp_path, case):
    change, message = REFUSED[case]
    folder = save_tiny(tmp_path, "llama", **BIASES)
    rewrite(folder, change)
    with pytest.raises(ModelFolderError, match=message):
        load(folder)


def test_biases_that_the_config_does_not_know_are_refused(tmp_path):
    folder = save_tiny(tmp_path, "llama", **BIASES)
    edit_config(folder, attention_bias=False)
    with pytest.raises(ModelFolderError, match=r"8 tensors are not part of .*k_proj\.bias"):
        load(folder)


def test_a_config_of_absurd_sizes_is_refused_before_any_memory_is_made(tmp_path):
    folder = save_tiny(tmp_path, "llama")
    with pytest.raises(ModelFolderError, match="another shape than the config asks for"):
        load(folder, vocab_size=10**12)


def test_a_shard_that_is_not_there_is_named(tmp_path):
    whole = save_tiny(tmp_path / "whole", "llama")
    sharded = tmp_path / "sharded"
    AutoModelForCausalLM.from_pretrained(whole).save_pretrained(sharded, max_shard_size="60KB")
    shard = sorted(sharded.glob("*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(ModelFolderError, match=shard.name):
        load(sharded)
