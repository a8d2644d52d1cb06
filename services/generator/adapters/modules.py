"""Which modules of a decoder an adapter may change, and which of them are fused into one product.

Used by whoever reads an adapter and by the bank that holds it. Sizes and names only.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from shared.modeling.config import DecoderConfig
from shared.modeling.vision_families import BARE, HEAD, WITH_HEAD, TensorNames

EMBEDDING = "embed_tokens"
"""Place of the embedding, which belongs to no layer, as the head does."""

GroupKey = tuple[int | None, str]
"""(layer, name of the fused projection); the embedding and the head belong to no layer."""
EMBEDDING_KEY: GroupKey = (None, "embed")
HEAD_KEY: GroupKey = (None, "head")


@dataclass(frozen=True, slots=True)
class GroupShape:
    """A fused projection, see `DecoderLayer`; or the embedding, or the head.

    Attributes:
        modules: names within a layer, in the order in which their outputs stand side by side; full names outside of layers.
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


@dataclass(frozen=True, slots=True)
class GroupStack:
    """One fused projection in every layer; or the embedding or the head, which are stacks of one.

    An adapter holds each stack as one A and one B, so that a copy takes as many transfers for 80 layers as for 2.

    Attributes:
        keys: of its groups, in the order of the layers.
    """

    shape: GroupShape
    keys: tuple[GroupKey, ...]

    @property
    def is_in_layers(self) -> bool:
        """Whether there is one in every layer."""
        layer, _ = self.keys[0]
        return layer is not None


@dataclass(frozen=True, slots=True)
class Place:
    """Where a module stands: the slice `index` of a group of a layer, or of one that belongs to no layer."""

    layer: int | None
    group: str
    index: int
    shape: GroupShape

    @property
    def key(self) -> GroupKey:
        """Which group that is."""
        return self.layer, self.group

    @property
    def level(self) -> int:
        """Where that stands in its stack."""
        return self.layer or 0

    @property
    def out_features(self) -> int:
        """Outputs of the module."""
        return self.shape.slice_sizes[self.index]


@dataclass(frozen=True, slots=True)
class AdapterTarget:
    """The base model that adapters are read for, and what the bank has room for.

    Attributes:
        base_model: name it is served under, which an adapter's own idea of its base is compared with.
        shapes: its fused projections, see `group_shapes`.
        max_rank: ranks that a slot of the bank has room for.
        dtype: of the bank.
        names: how an adapter's or the base's files may name modules of the decoder; the first is how the model itself does.
        foreign: beginnings of the names of modules outside of the decoder, such as a vision tower's, which cannot be adapted.
        outer: groups outside of the layers, see `outer_shapes`.
        base_folder: its weights, with which tensors that look like copies are compared; None has all of them refused.
        is_strict_base: whether an adapter that names another base is refused.
        is_pinned: whether packed adapters lie in page-locked memory, from which a GPU copies without the host.
        targets: modules that the bank has room for, by the last part of their names; None is all.
    """

    base_model: str
    num_layers: int
    shapes: Mapping[str, GroupShape]
    max_rank: int
    dtype: torch.dtype
    outer: Mapping[str, GroupShape] = field(default_factory=dict)
    names: tuple[TensorNames, ...] = (WITH_HEAD, BARE)
    foreign: tuple[str, ...] = ()
    base_folder: Path | None = None
    is_strict_base: bool = False
    targets: frozenset[str] | None = None
    is_pinned: bool = False

    def has_room_for(self, module: str) -> bool:
        """Whether the bank holds adapters of the module with this full name."""
        return self.targets is None or module.rpartition(".")[2] in self.targets

    def full_name(self, module: str) -> str:
        """The name in the model, which patterns are written for, of a module that an adapter's files may name otherwise."""
        places = (names.place(module) for names in self.names)
        place = next((place for place in places if place is not None), None)
        return module if place is None else self.names[0].name(place)

    def names_in_base(self, module: str) -> list[str]:
        """What the base's folder may call the module; a tied head is the embedding."""
        place = self.names[0].place(self.full_name(module))
        others = [module, f"model.{module}", module.removeprefix("model.")]
        places = [] if place is None else [HEAD, EMBEDDING] if place == HEAD else [place]
        return [names.name(each) for each in places for names in self.names] + others

    def banked_stacks(self) -> dict[str, GroupStack]:
        """What the bank must hold, by name: each group that has a module it has room for."""
        groups = {place.key: place.shape for module, place in self.places().items() if self.has_room_for(module)}
        names = dict.fromkeys(name for _, name in groups)
        keys = {name: tuple(key for key in groups if key[1] == name) for name in names}
        return {name: GroupStack(groups[keys[name][0]], keys[name]) for name in names}

    def places(self) -> dict[str, Place]:
        """All modules that can be adapted, by full name, in the order of the model."""
        outer = {
            module: Place(None, group, 0, shape) for group, shape in self.outer.items() for module in shape.modules
        }
        return outer | {
            self.names[0].name(f"layers.{layer}.{module}"): Place(layer, group, index, shape)
            for layer in range(self.num_layers)
            for group, shape in self.shapes.items()
            for index, module in enumerate(shape.modules)
        }


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


def outer_shapes(config: DecoderConfig) -> dict[str, GroupShape]:
    """The embedding, whose inputs are token ids, and the head; an adapter on one of two that are tied leaves the other alone."""
    hidden, vocab, names = config.hidden_size, config.vocab_size, config.tensor_names[0]
    return {
        "embed": GroupShape((names.name(EMBEDDING),), (hidden,), vocab),
        "head": GroupShape((names.name(HEAD),), (vocab,), hidden),
    }
