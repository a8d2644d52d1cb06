"""Owns the conversion of a Llama-architecture GGUF file to an ordinary Hugging Face folder, weights in fp32.

Called by the generator's recipe, which imports it late because gguf and numpy are slow to load.
It must not import torch or transformers and must not round: what is stored is exactly what the quantized blocks mean.

llama.cpp's converter reorders the rows of q and k within each head, from the half-split order of Hugging Face's rotary
embedding (x0..x31 | x32..x63) to adjacent pairs (x0 x32 x1 x33 ..); `unpermute_rotary_rows` undoes it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader
from gguf.quants import dequantize
from safetensors.numpy import save_file

from tools.prepare_models.errors import PrepareError
from tools.prepare_models.gguf_metadata import GgufMetadata
from tools.prepare_models.gguf_tokenizer import tokenizer_files

Float32 = npt.NDArray[np.float32]

_TOP_LEVEL_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_BLOCK_NAMES = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}


def convert_llama_gguf(gguf_file: Path, folder: Path) -> None:
    """Writes config.json, generation_config.json, model.safetensors and the tokenizer's files into `folder`.

    Raises:
        PrepareError: the file is of another architecture, or holds a tensor or a setting not known here.
    """
    reader = GGUFReader(gguf_file)
    metadata = GgufMetadata(reader)
    config = llama_config(metadata, is_head_tied=all(tensor.name != "output.weight" for tensor in reader.tensors))
    generation_config = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    json_files = {"config.json": config, "generation_config.json": generation_config, **tokenizer_files(metadata)}
    for name, content in json_files.items():
        (folder / name).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

    weights_file = folder / "model.safetensors"
    # transformers refuses a safetensors file that does not say which framework's layout it has.
    save_file(llama_weights(reader, config), weights_file, metadata={"format": "pt"})
    # save_file lets nobody but its owner read; a service may run as another user than the one who prepared.
    weights_file.chmod(0o644)


def llama_config(metadata: GgufMetadata, *, is_head_tied: bool) -> dict[str, Any]:
    """The config.json, every number of it from the file's metadata."""
    metadata.expect("general.architecture", "llama")
    metadata.refuse("llama.rope.scaling.type")
    hidden_size = metadata.integer("llama.embedding_length")
    num_heads = metadata.integer("llama.attention.head_count")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": metadata.integer("llama.vocab_size"),
        "hidden_size": hidden_size,
        "intermediate_size": metadata.integer("llama.feed_forward_length"),
        "num_hidden_layers": metadata.integer("llama.block_count"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": metadata.integer("llama.attention.head_count_kv"),
        "head_dim": metadata.optional_integer("llama.attention.key_length") or hidden_size // num_heads,
        "max_position_embeddings": metadata.integer("llama.context_length"),
        "rms_norm_eps": metadata.real("llama.attention.layer_norm_rms_epsilon"),
        "rope_theta": metadata.real("llama.rope.freq_base"),
        "rope_scaling": None,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "tie_word_embeddings": is_head_tied,
        "bos_token_id": metadata.integer("tokenizer.ggml.bos_token_id"),
        "eos_token_id": metadata.integer("tokenizer.ggml.eos_token_id"),
        "pad_token_id": metadata.integer("tokenizer.ggml.padding_token_id"),
        "initializer_range": 0.02,
        "use_cache": True,
        # Both spellings: releases of transformers before and after the rename read one each.
        "torch_dtype": "float32",
        "dtype": "float32",
    }


def llama_weights(reader: GGUFReader, config: dict[str, Any]) -> dict[str, Float32]:
    """Every tensor under its Hugging Face name, fp32, rows of q and k in Hugging Face's order."""
    num_heads_of = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    weights = {}
    for tensor in reader.tensors:
        weight: Float32 = np.asarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        num_heads = num_heads_of.get(tensor.name.split(".")[-2])
        if num_heads is not None:
            weight = unpermute_rotary_rows(weight, num_heads)
        weights[hugging_face_name(tensor.name)] = np.ascontiguousarray(weight)
    return weights


def hugging_face_name(gguf_name: str) -> str:
    """`blk.7.attn_q.weight` → `model.layers.7.self_attn.q_proj.weight`.

    Raises:
        PrepareError: a name that has no counterpart; leaving it out would silently change the model.
    """
    if gguf_name in _TOP_LEVEL_NAMES:
        return _TOP_LEVEL_NAMES[gguf_name]
    prefix, _, rest = gguf_name.partition(".")
    layer, _, part = rest.partition(".")
    if prefix != "blk" or not layer.isdigit() or part not in _BLOCK_NAMES:
        raise PrepareError(f"the GGUF file has a tensor {gguf_name!r}, which cannot be converted")
    return f"model.layers.{layer}.{_BLOCK_NAMES[part]}"


def unpermute_rotary_rows(weight: Float32, num_heads: int) -> Float32:
    """Rows of each head from adjacent pairs back to two halves.

    Semantics: out[h, half, i] = weight[h, i, half], rows read as [num_heads, head_dim / 2, 2].

    Args:
        weight: [num_heads * head_dim, hidden] fp32.
        num_heads: query heads for q, KV heads for k.
    Returns:
        [num_heads * head_dim, hidden] fp32.
    """
    pairs = weight.reshape(num_heads, -1, 2, weight.shape[1])  # [H, D/2, 2, hidden]
    return pairs.swapaxes(1, 2).reshape(weight.shape)
