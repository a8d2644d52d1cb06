"""Owns the conversion of the byte-level BPE tokenizer in a GGUF file to the files that `tokenizers` and others read.

Called by gguf_to_hf with the metadata of one file; the caller writes the files.
It must not import `tokenizers`: the format is plain JSON, and preparing models needs few packages.

The pre-tokenizer's name in GGUF, `smollm`, stands for two expressions that llama.cpp applies one after the other:
every digit alone, then GPT-2's. That is the sequence Digits(individual) and ByteLevel here.
"""

from __future__ import annotations

from typing import Any

from tools.prepare_models.errors import PrepareError
from tools.prepare_models.gguf_metadata import GgufMetadata

# GGUF's token types, as `gguf.TokenType` numbers them.
_NORMAL, _CONTROL = 1, 3


def tokenizer_files(metadata: GgufMetadata) -> dict[str, dict[str, Any]]:
    """The contents of tokenizer.json, tokenizer_config.json and special_tokens_map.json, by file name.

    Raises:
        PrepareError: the tokenizer is not byte-level BPE with SmolLM's pre-tokenizer, or its vocabulary is broken.
    """
    metadata.expect("tokenizer.ggml.model", "gpt2")
    metadata.expect("tokenizer.ggml.pre", "smollm")
    tokens = metadata.texts("tokenizer.ggml.tokens")
    if len(set(tokens)) != metadata.integer("llama.vocab_size"):
        raise PrepareError("the GGUF file's vocabulary repeats tokens or differs in length from llama.vocab_size")
    special_ids = _special_ids(metadata)
    special_tokens = {
        f"{role}_token": tokens[metadata.integer(f"tokenizer.ggml.{key}_token_id")]
        for role, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
    }
    return {
        "tokenizer.json": tokenizer_json(tokens, metadata.texts("tokenizer.ggml.merges"), special_ids),
        "tokenizer_config.json": _tokenizer_config(metadata, tokens, special_ids, special_tokens),
        "special_tokens_map.json": special_tokens,
    }


def tokenizer_json(tokens: list[str], merges: list[str], special_ids: list[int]) -> dict[str, Any]:
    """The content of tokenizer.json; a token's id is its place in `tokens`."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": token_id, **_added_token(tokens[token_id])} for token_id in special_ids],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level],
        },
        "post_processor": None,
        "decoder": {**byte_level, "add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: token_id for token_id, token in enumerate(tokens)},
            # No token of a byte-level vocabulary contains a space, so the one space is the seam.
            "merges": [merge.split(" ") for merge in merges],
        },
    }


def _special_ids(metadata: GgufMetadata) -> list[int]:
    types = metadata.integers("tokenizer.ggml.token_type")
    unknown_types = set(types) - {_NORMAL, _CONTROL}
    if unknown_types:
        raise PrepareError(f"the GGUF file has tokens of types {sorted(unknown_types)}, which cannot be converted")
    return [token_id for token_id, token_type in enumerate(types) if token_type == _CONTROL]


def _tokenizer_config(
    metadata: GgufMetadata, tokens: list[str], special_ids: list[int], special_tokens: dict[str, str]
) -> dict[str, Any]:
    return {
        "added_tokens_decoder": {str(token_id): _added_token(tokens[token_id]) for token_id in special_ids},
        "add_bos_token": metadata.boolean("tokenizer.ggml.add_bos_token"),
        "add_prefix_space": metadata.boolean("tokenizer.ggml.add_space_prefix"),
        **special_tokens,
        "chat_template": metadata.text("tokenizer.chat_template"),
        "clean_up_tokenization_spaces": False,
        "model_max_length": metadata.integer("llama.context_length"),
        # Not GPT2Tokenizer: that class puts its own pre-tokenizer in place of tokenizer.json's and loses the digits.
        "tokenizer_class": "PreTrainedTokenizerFast",
    }


def _added_token(content: str) -> dict[str, Any]:
    return {
        "content": content,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
