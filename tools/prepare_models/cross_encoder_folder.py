"""Owns how the reranker's folder is put together: the embedder's weights plus the delta that the repository keeps.

Called by the recipe of the reranker, which imports it late because numpy and safetensors are slow to load.
It must not leave anything of sentence-transformers in the folder: with a list of modules it would be taken for an embedder.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file, save_file

from tools.prepare_models.errors import PrepareError

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")
_PLAIN_LORA = {
    "peft_type": "LORA",
    "bias": "none",
    "fan_in_fan_out": False,
    "use_dora": False,
    "use_rslora": False,
    "rank_pattern": {},
    "alpha_pattern": {},
}
"""What a delta must say of itself to be merged by the one formula below."""
_DELTA_PREFIX, _HEAD_PREFIX = "base_model.model.", "classifier."

Tensors: TypeAlias = dict[str, npt.NDArray[Any]]


def build_cross_encoder_folder(encoder: Path, delta: Path, folder: Path) -> None:
    """Fills `folder` with a BertForSequenceClassification of one label, in float32.

    Semantics: W + lora_alpha / r * B @ A for each weight that the delta has a pair for (LoRA, arXiv 2106.09685, section 4.1); the
    head is the delta's own.

    Args:
        encoder: prepared folder of a BertModel.
        delta: what peft saved of a LoRA for sequence classification.

    Raises:
        PrepareError: the delta is another kind of LoRA, or has something that the encoder has no place for.
    """
    weights = {f"bert.{name}": tensor for name, tensor in load_file(encoder / "model.safetensors").items()}
    weights.pop("bert.embeddings.position_ids", None)
    merged = _merge(weights, load_file(delta / "adapter_model.safetensors"), _scale(delta / "adapter_config.json"))
    save_file(merged, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((encoder / "config.json").read_text(encoding="utf-8"))
    config |= {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "relevant"}}
    config |= {"label2id": {"relevant": 0}, "torch_dtype": "float32"}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    for name in _TOKENIZER_FILES:
        shutil.copyfile(encoder / name, folder / name)


def _scale(path: Path) -> float:
    config = json.loads(path.read_text(encoding="utf-8"))
    for key, plain in _PLAIN_LORA.items():
        if config.get(key, plain) != plain:
            raise PrepareError(f"{path}: {key} is {config[key]!r}; only {plain!r} can be merged")
    scale: float = config["lora_alpha"] / config["r"]
    return scale


def _merge(weights: Tensors, delta: Mapping[str, npt.NDArray[Any]], scale: float) -> Tensors:
    merged = dict(weights)
    for key, tensor in delta.items():
        name, kind = _place(key)
        if kind == "head":
            merged[name] = tensor.astype(np.float32)
        elif name not in weights:
            raise PrepareError(f"the delta changes {name}, which the encoder lacks")
        elif kind == "lora_B":
            a = delta[key.replace(".lora_B.", ".lora_A.")].astype(np.float32)
            merged[name] = weights[name] + scale * (tensor.astype(np.float32) @ a)
    return merged


def _place(key: str) -> tuple[str, str]:
    """Name of the weight that a tensor of the delta belongs to, and what it is of it: a head, lora_A or lora_B."""
    name = key.removeprefix(_DELTA_PREFIX)
    if name.startswith(_HEAD_PREFIX):
        return name, "head"
    for kind in ("lora_A", "lora_B"):
        if f".{kind}." in name:
            return name.replace(f".{kind}", ""), kind
    raise PrepareError(f"the delta has {key}, which is neither a LoRA pair nor the head")
