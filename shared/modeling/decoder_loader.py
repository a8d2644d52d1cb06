"""Puts a folder's tensors where the decoder wants them, fusing q, k, v and gate, up on the way.

Called when a model is loaded. Memory is made once, fused, on the device; each tensor of the files is copied straight to its place.
Fails on a missing, misshaped or unknown tensor, naming it, before any of that memory is made.
"""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from shared.modeling.config import DecoderConfig
from shared.modeling.decoder import DecoderLayer, DecoderWeights, Linear
from shared.modeling.load_progress import LoadProgress
from shared.modeling.vision_families import TensorNames
from shared.modeling.weights import WeightFiles
from shared.observability.logging import get_logger
from shared.settings.errors import ModelFolderError

log = get_logger(__name__)

_EMBEDDING, _FINAL_NORM = "embed_tokens.weight", "norm.weight"
_OTHER_HEADS = ("score.weight",)
_IGNORED_SUFFIXES = ("rotary_emb.inv_freq",)  # recomputed from the config

Places = dict[str, Tensor]
"""Name of a tensor in the files → where it goes: a whole tensor of the decoder, or some rows of one."""


def load_decoder(
    folder: Path, config: DecoderConfig, dtype: torch.dtype, device: torch.device, *, needs_head: bool = True
) -> DecoderWeights:
    """Read all weights of the decoder in `folder` as `dtype` onto `device`.

    Args:
        needs_head: false leaves out whatever head there is and says in `head` that it is tied.
    Raises:
        ModelFolderError: a tensor is missing, has another shape than the config asks for, is quantised, or is unknown.
    """
    with WeightFiles(folder) as files:
        names = _names(config, files)
        is_tied = not needs_head or (config.has_tied_head and not _has_head_of_its_own(files, names))
        planned = _allocate(config, dtype, torch.device("meta"), is_tied=is_tied)
        ignored = (names.head,) if config.has_tied_head or not needs_head else ()
        _check(files, _places(planned, config, files, names), config, ignored if needs_head else ignored + _OTHER_HEADS)
        weights = _allocate(config, dtype, device, is_tied=is_tied)
        _copy(files, _places(weights, config, files, names))
    return weights


def decoder_bytes(config: DecoderConfig, dtype: torch.dtype) -> int:
    """Memory that the weights will take."""
    return _allocate(config, dtype, torch.device("meta"), is_tied=config.has_tied_head).num_bytes


def make_random_decoder(config: DecoderConfig, dtype: torch.dtype, device: torch.device) -> DecoderWeights:
    """Random weights of the right sizes, the same at every start: norms near 1, products that neither vanish nor explode."""
    weights = _allocate(config, dtype, device, is_tied=config.has_tied_head)
    random = torch.Generator(device).manual_seed(0)
    for tensor in weights.tensors():
        if tensor.dim() == 1:
            tensor.normal_(1.0, 0.1, generator=random)
        else:
            tensor.normal_(0.0, tensor.shape[1] ** -0.5, generator=random)
    return weights


def _names(config: DecoderConfig, files: WeightFiles) -> TensorNames:
    """How the folder names its tensors; where none of the known namings fits, errors speak in the first."""
    known = config.tensor_names
    return next((names for names in known if names.prefix + _FINAL_NORM in files), known[0])


def _has_head_of_its_own(files: WeightFiles, names: TensorNames) -> bool:
    """Some folders declare a tied head and store one all the same; where it differs it counts, as in transformers."""
    embedding = names.prefix + _EMBEDDING
    if names.head not in files or embedding not in files or files.is_equal(names.head, embedding):
        return False
    log.warning(
        "head_not_tied", reason="config.json ties it to the embedding, but the folder has another; that one is used"
    )
    return True


def _allocate(config: DecoderConfig, dtype: torch.dtype, device: torch.device, *, is_tied: bool) -> DecoderWeights:
    """All tensors of the decoder, not filled yet."""

    def empty(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    def linear(rows: int, width: int, has_bias: bool) -> Linear:
        return Linear(empty(rows, width), empty(rows) if has_bias else None)

    hidden, inner = config.hidden_size, config.intermediate_size
    layers = [
        DecoderLayer(
            input_norm=empty(hidden),
            qkv=linear(config.q_size + 2 * config.kv_size, hidden, config.has_qkv_bias),
            q_norm=empty(config.head_dim) if config.has_qk_norm else None,
            k_norm=empty(config.head_dim) if config.has_qk_norm else None,
            o=linear(hidden, config.q_size, config.has_o_bias),
            post_norm=empty(hidden),
            gate_up=linear(2 * inner, hidden, config.has_mlp_bias),
            down=linear(hidden, inner, config.has_mlp_bias),
        )
        for _ in range(config.num_layers)
    ]
    embedding = empty(config.vocab_size, hidden)
    head = embedding if is_tied else empty(config.vocab_size, hidden)
    return DecoderWeights(embedding, layers, empty(hidden), head)


def _places(weights: DecoderWeights, config: DecoderConfig, files: WeightFiles, names: TensorNames) -> Places:
    is_tied = weights.head is weights.embedding
    embedding = names.prefix + _EMBEDDING
    is_head_only = is_tied and embedding not in files and names.head in files
    places = {names.head if is_head_only else embedding: weights.embedding}
    for index, layer in enumerate(weights.layers):
        places.update(_layer_places(layer, config, f"{names.prefix}layers.{index}."))
    places[names.prefix + _FINAL_NORM] = weights.final_norm
    return places if is_tied else {**places, names.head: weights.head}


def _layer_places(layer: DecoderLayer, config: DecoderConfig, prefix: str) -> Iterator[tuple[str, Tensor]]:
    norms = {
        "input_layernorm": layer.input_norm,
        "post_attention_layernorm": layer.post_norm,
        "self_attn.q_norm": layer.q_norm,
        "self_attn.k_norm": layer.k_norm,
    }
    yield from ((f"{prefix}{name}.weight", norm) for name, norm in norms.items() if norm is not None)
    q, kv, inner = config.q_size, config.kv_size, config.intermediate_size
    yield from _rows(layer.qkv, f"{prefix}self_attn.", {"q_proj": q, "k_proj": kv, "v_proj": kv})
    yield from _rows(layer.o, f"{prefix}self_attn.", {"o_proj": config.hidden_size})
    yield from _rows(layer.gate_up, f"{prefix}mlp.", {"gate_proj": inner, "up_proj": inner})
    yield from _rows(layer.down, f"{prefix}mlp.", {"down_proj": config.hidden_size})


def _rows(fused: Linear, prefix: str, parts: Mapping[str, int]) -> Iterator[tuple[str, Tensor]]:
    """The projections in `parts` lie one below the other in `fused`, each with so many rows."""
    sizes = list(parts.values())
    for name, rows in zip(parts, torch.split(fused.weight, sizes), strict=True):
        yield f"{prefix}{name}.weight", rows
    if fused.bias is not None:
        for name, rows in zip(parts, torch.split(fused.bias, sizes), strict=True):
            yield f"{prefix}{name}.bias", rows


def _check(files: WeightFiles, places: Places, config: DecoderConfig, ignored: Collection[str]) -> None:
    files.check({name: tensor.shape for name, tensor in places.items()})
    foreign = () if config.vision is None else config.vision.foreign
    left = files.names() - set(places) - set(ignored)
    unknown = [name for name in left if not name.endswith(_IGNORED_SUFFIXES) and not name.startswith(foreign)]
    if unknown:
        raise ModelFolderError(f"{len(unknown)} tensors are not part of {config.architecture}, such as {min(unknown)}")


def _copy(files: WeightFiles, places: Places) -> None:
    progress = LoadProgress(sum(tensor.nbytes for tensor in places.values()))
    for name, tensor in places.items():
        files.copy(name, tensor)
        progress.advance(tensor.nbytes)
    progress.finish()
