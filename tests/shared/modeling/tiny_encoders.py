"""Tiny random checkpoints of every encoder family, made by transformers; nothing in them is left at a value that hides a slip.

Used by the tests of encoders and of classification heads. Each entry is one case: its configuration and what is changed in it.
"""

from pathlib import Path
from typing import Any

import torch
import transformers

from tests.shared.modeling.tiny_bert import MAX_POSITIONS, VOCAB_SIZE, save_tokenizer, set_json

_SIZES = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": MAX_POSITIONS,
    "initializer_range": 0.2,
}
_DISTIL = {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48}
_ROBERTA = {"max_position_embeddings": MAX_POSITIONS + 2, "type_vocab_size": 1, "pad_token_id": 1}
_TOKENS = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3}
_MODERN = {**_TOKENS, "num_hidden_layers": 4, "local_attention": 12}
_DECODER = {"num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("Bert", {}),
    "roberta": ("Roberta", _ROBERTA),
    "xlm_roberta": ("XLMRoberta", _ROBERTA),
    "camembert": ("Camembert", _ROBERTA),
    "distilbert": ("DistilBert", _DISTIL),
    "mpnet": ("MPNet", {"max_position_embeddings": MAX_POSITIONS + 2, "pad_token_id": 1}),
    "modernbert": ("ModernBert", _MODERN),
    "modernbert_biases": ("ModernBert", {**_MODERN, "attention_bias": True, "mlp_bias": True, "norm_bias": True}),
    "qwen3": ("Qwen3", {**_DECODER, "head_dim": 16}),
    "qwen2": ("Qwen2", _DECODER),
    "llama": ("Llama", _DECODER),
    "mistral_window": ("Mistral", {**_DECODER, "sliding_window": 7}),
}
"""Case → (start of transformers' class names, what differs from the usual sizes)."""
_NOT_NATIVE: dict[str, tuple[str, dict[str, Any]]] = {"electra": ("Electra", {"embedding_size": 16})}


def save_tiny_encoder(folder: Path, case: str, head: str = "Model", **changes: Any) -> Path:
    """Write a random model of `case` with the head `head`; its norms and biases are random too."""
    name, values = {**CASES, **_NOT_NATIVE}[case]
    sizes = {**_SIZES, **values, **changes}
    config = getattr(transformers, f"{name}Config")(**sizes)
    torch.manual_seed(0)
    model = getattr(transformers, name + head)(config)
    for path, parameter in model.named_parameters():
        if path.endswith("bias"):  # made as zeros, which would hide a forgotten one
            torch.nn.init.normal_(parameter, std=0.2)
        elif "norm" in path.lower():  # made as ones
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
        elif head != "Model" and "classifier" in path:
            torch.nn.init.normal_(parameter, std=0.5)
    model.save_pretrained(folder)
    return folder


def save_classifier(folder: Path, case: str, **changes: Any) -> Path:
    """A tiny classifier, with one label unless told otherwise, and a tokenizer that shows the model types of tokens."""
    save_tokenizer(save_tiny_encoder(folder, case, "ForSequenceClassification", **{"num_labels": 1, **changes}))
    set_json(folder / "tokenizer_config.json", model_input_names=["input_ids", "token_type_ids", "attention_mask"])
    return folder
