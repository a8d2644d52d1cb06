"""The two models of the training: the embedder, which finds hard negatives and is the one to beat, and the cross-encoder.

Used by `train`. Both start from the same folder; the cross-encoder learns a LoRA delta on it and a head with one label.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, TaskType, get_peft_model
from torch import Tensor
from torch.nn import functional
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

from examples.reranker.token_table import Frame, TokenTable, pair_inputs, tokenize

LORA_MODULES = ("query", "key", "value", "dense")
BASE_NAME = "all-minilm-l6-v2"
"""What a saved delta says that it belongs to, wherever the folder it was trained on was."""
_MAX_QUERY_TOKENS = 64


class Embedder:
    """Mean-pooled unit vectors of texts."""

    def __init__(self, folder: Path, device: str, max_length: int) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        self._model = AutoModel.from_pretrained(folder, dtype=torch.float32).to(device).eval()
        self._device = device
        self._max_length = max_length

    @torch.inference_mode()
    def vectors(self, texts: Sequence[str], batch_size: int = 512) -> Tensor:
        """[texts, H] float32 on the model's device, each of unit length."""
        order = sorted(range(len(texts)), key=lambda place: len(texts[place]))
        rows = []
        for start in range(0, len(order), batch_size):
            batch = [texts[place] for place in order[start : start + batch_size]]
            inputs = self._tokenizer(
                batch, padding=True, truncation=True, max_length=self._max_length, return_tensors="pt"
            ).to(self._device)
            states = self._model(**inputs).last_hidden_state
            mask = inputs["attention_mask"][..., None].to(states.dtype)
            rows.append(functional.normalize((states * mask).sum(1) / mask.sum(1), dim=1))
        vectors = torch.cat(rows)
        return vectors[torch.tensor(order, device=vectors.device).argsort()]


class CrossEncoder:
    """One number for a query and a passage read together."""

    def __init__(self, folder: Path, device: str, max_length: int, rank: int) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        self._frame = Frame(self._tokenizer.cls_token_id, self._tokenizer.sep_token_id, max_length)
        base = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=1, dtype=torch.float32)
        lora = LoraConfig(
            task_type=TaskType.SEQ_CLS,
            r=rank,
            lora_alpha=2 * rank,
            lora_dropout=0.05,
            target_modules=list(LORA_MODULES),
            modules_to_save=["classifier"],
        )
        self.model: Any = get_peft_model(base, lora).to(device)
        self.device = device

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        """What is learnt: the delta and the head."""
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    def table(self, texts: Sequence[str], *, are_queries: bool) -> TokenTable:
        """The texts as `logits` takes them."""
        return tokenize(
            self._tokenizer, texts, _MAX_QUERY_TOKENS if are_queries else self._frame.max_length, self.device
        )

    def logits(self, queries: TokenTable, passages: TokenTable) -> Tensor:
        """[rows] float32, with gradients where the model is in training mode."""
        with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
            logits: Tensor = self.model(**pair_inputs(queries, passages, self._frame)).logits[:, 0]
        return logits.float()

    @torch.inference_mode()
    def scores(self, queries: TokenTable, passages: TokenTable, pairs: Tensor, batch_size: int = 1024) -> Tensor:
        """[pairs] float32 on the CPU, where `pairs` [pairs, 2] has places in the two tables."""
        self.model.eval()
        order = (queries.lengths[pairs[:, 0]] + passages.lengths[pairs[:, 1]]).argsort(stable=True)
        scores = torch.empty(len(pairs))
        for places in order.split(batch_size):
            query_places, passage_places = pairs[places].T
            scores[places] = self.logits(queries.rows(query_places), passages.rows(passage_places)).cpu()
        return scores

    def round_to_half(self) -> None:
        """Round what was learnt to the numbers that `save` writes, so that those are what is measured."""
        for parameter in self.parameters:
            parameter.data = parameter.data.half().float()

    def save(self, folder: Path) -> None:
        """The delta with the head, as peft writes them, in half precision."""
        self.model.peft_config["default"].base_model_name_or_path = BASE_NAME
        self.model.half().save_pretrained(folder, save_embedding_layers=False)
        (folder / "README.md").unlink(missing_ok=True)
