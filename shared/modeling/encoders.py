"""The table of encoder families: the architecture named in config.json → the function that loads it.

Used by `TextEncoder`. A new family is one file with its loader and one row here.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from shared.modeling.bert_families import BERT, DISTILBERT, MPNET, ROBERTA
from shared.modeling.bert_loader import load_bert
from shared.modeling.decoder_encoder import DECODERS, load_decoder_encoder
from shared.modeling.modernbert_loader import load_modernbert
from shared.modeling.ragged import RaggedBatch
from shared.modeling.transformers_encoder import load_transformers_encoder
from shared.settings.errors import ModelFolderError
from shared.settings.model_folder import read_json


class Encoder(Protocol):
    """A model that gives every token a hidden state.

    Attributes:
        max_positions: longest sequence it takes, in tokens.
        has_padding: whether a sequence costs as much as the longest of its batch, by attention over padded sequences.
        num_token_types: kinds of token it tells apart, such as first and second text of a pair; 0 where it tells none.
    """

    vocab_size: int
    max_positions: int
    hidden_size: int
    num_token_types: int
    has_padding: bool

    def encode(self, batch: RaggedBatch) -> Tensor:
        """Hidden states of the last layer, [T, hidden_size], in the model's dtype."""
        ...


LoadEncoder = Callable[[Path, torch.dtype, torch.device], Encoder]

_FAMILIES: Mapping[str, LoadEncoder] = {
    "Bert": partial(load_bert, family=BERT),
    "Roberta": partial(load_bert, family=ROBERTA),
    "XLMRoberta": partial(load_bert, family=ROBERTA),
    "Camembert": partial(load_bert, family=ROBERTA),
    "DistilBert": partial(load_bert, family=DISTILBERT),
    "MPNet": partial(load_bert, family=MPNET),
    "ModernBert": load_modernbert,
    **dict.fromkeys(DECODERS, load_decoder_encoder),
}

ENCODERS: Mapping[str, LoadEncoder] = {
    family + head: load
    for family, load in _FAMILIES.items()
    for head in ("Model", "ForSequenceClassification", "ForCausalLM" if family in DECODERS else "ForMaskedLM")
}


def load_encoder(folder: Path, dtype: torch.dtype, device: torch.device) -> Encoder:
    """Load the encoder in `folder` by the first of its `architectures`; one that is not in the table is left to `transformers`.

    Raises:
        ModelFolderError: config.json names no architecture, or one that is not supported.
    """
    names = read_json(folder / "config.json").get("architectures") or []
    if not names:
        raise ModelFolderError("config.json names no architecture")
    if names[0] not in ENCODERS:
        return load_transformers_encoder(folder, str(names[0]), dtype, device)
    return ENCODERS[names[0]](folder, dtype, device)
