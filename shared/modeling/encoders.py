"""The table of encoder families: the architecture named in config.json → the function that loads it.

Used by `TextEncoder`. A new family is one file with its loader and one row here.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from shared.modeling.bert import load_bert
from shared.modeling.ragged import RaggedBatch
from shared.settings.errors import ModelFolderError
from shared.settings.model_folder import read_json


class Encoder(Protocol):
    """A model that gives every token a hidden state; `max_positions` is the longest sequence it takes, in tokens."""

    vocab_size: int
    max_positions: int
    hidden_size: int

    def encode(self, batch: RaggedBatch) -> Tensor:
        """Hidden states of the last layer, [T, hidden_size], in the model's dtype."""
        ...


LoadEncoder = Callable[[Path, torch.dtype, torch.device], Encoder]

ENCODERS: Mapping[str, LoadEncoder] = {
    "BertModel": load_bert,
    "BertForMaskedLM": load_bert,
}


def load_encoder(folder: Path, dtype: torch.dtype, device: torch.device) -> Encoder:
    """Load the encoder in `folder` by the first of its `architectures`.

    Raises:
        ModelFolderError: config.json names no architecture, or one that is not supported.
    """
    names = read_json(folder / "config.json").get("architectures") or []
    if not names:
        raise ModelFolderError("config.json names no architecture")
    if names[0] not in ENCODERS:
        raise ModelFolderError(f"architecture {names[0]} is not supported; supported are {', '.join(ENCODERS)}")
    return ENCODERS[names[0]](folder, dtype, device)
