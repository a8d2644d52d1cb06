"""Tiny BERT folders with random weights, as transformers and sentence-transformers save them; the references are theirs.

Used by the tests of the encoder, of pooling and of the recipe. Large initial weights, so that a wrong place shows.
"""

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertForMaskedLM, BertModel

VOCAB_SIZE = 97
MAX_POSITIONS = 64


def save_tiny_bert(folder: Path, *, has_prefix: bool = False, seed: int = 0, **changes: Any) -> Path:
    """Write a two-layer BERT; with `has_prefix` its tensors' names begin with `bert.`."""
    values = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "max_position_embeddings": MAX_POSITIONS,
        "initializer_range": 0.2,
    }
    torch.manual_seed(seed)
    kind = BertForMaskedLM if has_prefix else BertModel
    kind(BertConfig(**{**values, **changes})).eval().save_pretrained(folder)
    return folder


def save_tokenizer(folder: Path) -> None:
    """A word-level tokenizer of the tiny vocabulary: the word `w7` has the id 7; it joins pairs as BERT's does."""
    specials = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3}
    vocabulary = specials | {f"w{token_id}": token_id for token_id in range(4, VOCAB_SIZE)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    tokenizer.add_special_tokens(list(specials))
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]", "model_max_length": MAX_POSITIONS}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def write_json(path: Path, content: Any) -> None:
    """Write `content`, making the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def set_json(path: Path, **values: Any) -> None:
    """Set keys of the object in `path`, which need not be there."""
    path.write_text(json.dumps({**(json.loads(path.read_text()) if path.exists() else {}), **values}))
