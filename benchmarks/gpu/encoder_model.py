"""The models and inputs of the encoder benchmark: BERT in two shapes with random weights, sequences of many lengths, documents.

Weights are made on the device and written in bf16 to a folder that the peers and ours both load.
"""

import json
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertForSequenceClassification, BertModel

VOCAB_SIZE = 30_522
MAX_LEN = 512
NUM_SEQUENCES = 4096


class Shape(NamedTuple):
    """A size of BERT, and the figures it is compared with in thousands of tokens a second.

    Attributes:
        limit: what 770 TFLOP/s allow for the products of the layers.
    """

    name: str
    hidden: int
    layers: int
    limit: float
    goal: float

    @property
    def config(self) -> BertConfig:
        """For transformers."""
        return BertConfig(
            vocab_size=VOCAB_SIZE,
            hidden_size=self.hidden,
            num_hidden_layers=self.layers,
            num_attention_heads=self.hidden // 64,
            intermediate_size=4 * self.hidden,
        )


BASE = Shape("BERT-base", 768, 12, 4530, 2200)
LARGE = Shape("BERT-large", 1024, 24, 1275, 800)


def write_encoder(folder: Path, shape: Shape) -> Path:
    """An encoder with mean pooling left to its user."""
    return _write(folder, partial(BertModel, add_pooling_layer=False), shape.config)


def write_cross_encoder(folder: Path, shape: Shape) -> Path:
    """A classifier with one label."""
    config = shape.config
    config.num_labels = 1
    return _write(folder, BertForSequenceClassification, config)


def _write(folder: Path, kind: Callable[[BertConfig], Any], config: BertConfig) -> Path:
    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = kind(config).to(torch.bfloat16)
    model.save_pretrained(folder)
    _write_tokenizer(folder)
    return folder


def _write_tokenizer(folder: Path) -> None:
    """A word for each id; it joins pairs as BERT's does."""
    specials = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3}
    words = specials | {f"w{token_id}": token_id for token_id in range(len(specials), VOCAB_SIZE)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    tokenizer.add_special_tokens(list(specials))
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": "[PAD]",
        "model_max_length": MAX_LEN,
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def random_sequences(count: int) -> list[list[int]]:
    """Ids; lengths lognormal(5.0, 0.7), clipped to 8 to 512: 749,686 tokens for 4096 sequences."""
    rng = random.Random(0)
    lengths = [min(MAX_LEN, max(8, int(rng.lognormvariate(5.0, 0.7)))) for _ in range(count)]
    draws = np.random.default_rng(0)
    return [draws.integers(4, VOCAB_SIZE, length).tolist() for length in lengths]


def random_documents(count: int, max_words: int = 400) -> list[str]:
    """Texts of the same kind of lengths."""
    rng = random.Random(0)
    lengths = [min(max_words, max(8, int(rng.lognormvariate(4.5, 0.6)))) for _ in range(count)]
    return [" ".join(f"w{rng.randrange(4, VOCAB_SIZE)}" for _ in range(length)) for length in lengths]
