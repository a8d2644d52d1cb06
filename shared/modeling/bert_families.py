"""The table of encoders built like BERT: how each names its sizes in config.json and its tensors, and how it counts positions.

Read by `bert_loader`. A new family of this build is one row here; a family of another build is a module of its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class BertFamily:
    """Names of one family; those of layers are relative to `{layers}{index}.`.

    Attributes:
        prefix: what all names begin with where the folder was saved with a head.
        sizes: key of config.json by our name of the size, where it is not BERT's.
        has_token_types: there is an embedding for each token's type, such as first and second text of a pair.
        padding_id: positions count the tokens other than this id, from the id's successor on; None counts all tokens from 0.
            A `pad_token_id` in config.json goes before it where `reads_padding_id`.
        relative_bias: tensor of biases by relative position, added to the attention scores of all layers.
    """

    prefix: str
    layers: str
    qkv: tuple[str, str, str]
    attention_out: str
    attention_norm: str
    up: str
    down: str
    norm: str
    sizes: Mapping[str, str] = field(default_factory=dict)
    has_token_types: bool = True
    padding_id: int | None = None
    reads_padding_id: bool = False
    relative_bias: str | None = None

    def size_key(self, name: str) -> str:
        """The key in config.json of what BERT calls `name`."""
        return self.sizes.get(name, name)


_BERT: Mapping[str, Any] = {
    "layers": "encoder.layer.",
    "qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
    "attention_out": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "up": "intermediate.dense",
    "down": "output.dense",
    "norm": "output.LayerNorm",
}

# BERT: Pre-training of Deep Bidirectional Transformers, arXiv:1810.04805.
BERT = BertFamily(prefix="bert.", **_BERT)
# RoBERTa, arXiv:1907.11692, and XLM-R, arXiv:1911.02116; positions as fairseq counts them.
ROBERTA = BertFamily(prefix="roberta.", padding_id=1, reads_padding_id=True, **_BERT)
# DistilBERT, arXiv:1910.01108.
DISTILBERT = BertFamily(
    prefix="distilbert.",
    layers="transformer.layer.",
    qkv=("attention.q_lin", "attention.k_lin", "attention.v_lin"),
    attention_out="attention.out_lin",
    attention_norm="sa_layer_norm",
    up="ffn.lin1",
    down="ffn.lin2",
    norm="output_layer_norm",
    sizes={
        "hidden_size": "dim",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "intermediate_size": "hidden_dim",
        "hidden_act": "activation",
    },
    has_token_types=False,
)
# MPNet, arXiv:2004.09297.
MPNET = BertFamily(
    prefix="mpnet.",
    layers="encoder.layer.",
    qkv=("attention.attn.q", "attention.attn.k", "attention.attn.v"),
    attention_out="attention.attn.o",
    attention_norm="attention.LayerNorm",
    up="intermediate.dense",
    down="output.dense",
    norm="output.LayerNorm",
    has_token_types=False,
    padding_id=1,
    relative_bias="encoder.relative_attention_bias.weight",
)
