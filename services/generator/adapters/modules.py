"""Which projections of a decoder an adapter may change, and which of them are fused into one product.

Used by whoever reads an adapter and by the bank that holds it. Sizes and names only.
"""

from dataclasses import dataclass

from shared.modeling.config import DecoderConfig


@dataclass(frozen=True, slots=True)
class GroupShape:
    """A fused projection, see `DecoderLayer`.

    Attributes:
        modules: names within a layer, in the order in which their outputs stand side by side.
        slice_sizes: outputs of each.
        in_features: inputs of all.
    """

    modules: tuple[str, ...]
    slice_sizes: tuple[int, ...]
    in_features: int

    @property
    def out_features(self) -> int:
        """Outputs of all."""
        return sum(self.slice_sizes)


def group_shapes(config: DecoderConfig) -> dict[str, GroupShape]:
    """The groups of every layer, by the name that `DecoderOps.project` gives them."""
    hidden, inner, q, kv = config.hidden_size, config.intermediate_size, config.q_size, config.kv_size
    qkv = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    return {
        "qkv": GroupShape(qkv, (q, kv, kv), hidden),
        "o": GroupShape(("self_attn.o_proj",), (hidden,), q),
        "gate_up": GroupShape(("mlp.gate_proj", "mlp.up_proj"), (inner, inner), hidden),
        "down": GroupShape(("mlp.down_proj",), (hidden,), inner),
    }
