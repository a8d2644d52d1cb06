"""The two models of the training: the embedder, which finds hard negatives and is the one to beat, and the cross-encoder.

Used by `train`. Both start from the same folder; the cross-encoder learns a LoRA delta on it and a head with one label.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, TaskType, get_peft_model
from torch import Tensor
from torch.nn import functional
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

LORA_MODULES = ("query", "key", "value", "dense")


class Embedder:
    """Mean-pooled unit vectors of texts."""

    def __init__(self, folder: Path, device: str, max_length: int) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        self._model = AutoModel.from_pretrained(folder).to(device).eval()
        self._device = device
        self._max_length = max_length

    @torch.inference_mode()
    def vectors(self, texts: Sequence[str], batch_size: int = 128) -> Tensor:
        """[texts, H] float32 on the CPU, each of unit length."""
        rows = []
        for batch in _batches(texts, batch_size):
            inputs = self._tokenizer(
                batch, padding=True, truncation=True, max_length=self._max_length, return_tensors="pt"
            ).to(self._device)
            states = self._model(**inputs).last_hidden_state
            mask = inputs["attention_mask"][..., None].to(states.dtype)
            means = (states * mask).sum(1) / mask.sum(1)
            rows.append(functional.normalize(means.float(), dim=1).cpu())
        return torch.cat(rows)


class CrossEncoder:
    """One number for a query and a passage read together."""

    def __init__(self, folder: Path, device: str, max_length: int, rank: int) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        base = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=1)
        lora = LoraConfig(
            task_type=TaskType.SEQ_CLS,
            r=rank,
            lora_alpha=2 * rank,
            lora_dropout=0.05,
            target_modules=list(LORA_MODULES),
            modules_to_save=["classifier"],
        )
        self.model: Any = get_peft_model(base, lora).to(device)
        self._device = device
        self._max_length = max_length

    def logits(self, queries: Sequence[str], passages: Sequence[str]) -> Tensor:
        """[pairs], with gradients where the model is in training mode."""
        inputs = self.tokenizer(
            list(queries),
            list(passages),
            padding=True,
            truncation="only_second",
            max_length=self._max_length,
            return_tensors="pt",
        ).to(self._device)
        with torch.autocast(self._device, torch.bfloat16, enabled=self._device == "cuda"):
            logits: Tensor = self.model(**inputs).logits[:, 0]
        return logits.float()

    @torch.inference_mode()
    def scores(self, query: str, passages: Sequence[str], batch_size: int = 128) -> Tensor:
        """[passages] on the CPU."""
        self.model.eval()
        return torch.cat([self.logits([query] * len(batch), batch).cpu() for batch in _batches(passages, batch_size)])

    def save(self, folder: Path) -> None:
        """The delta with the head in `folder/delta`, and the merged model, ready to be served, in `folder/merged`."""
        self.model.save_pretrained(folder / "delta")
        merged = self.model.merge_and_unload()
        merged.save_pretrained(folder / "merged")
        self.tokenizer.save_pretrained(folder / "merged")


def _batches(texts: Sequence[str], size: int) -> Iterator[list[str]]:
    for start in range(0, len(texts), size):
        yield list(texts[start : start + size])
