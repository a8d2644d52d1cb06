"""Puts a folder's tensors where the decoder wants them, fusing q, k, v and gate, up on the way.

Called when a model is loaded. Fails on a missing, misshaped or unknown tensor, naming it.
"""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from shared.modeling.config import DecoderConfig
from shared.modeling.decoder import DecoderLayer, DecoderWeights, Linear
from shared.modeling.weights import WeightFiles
from shared.settings.errors import ModelFolderError

_IGNORED_SUFFIXES = ("rotary_emb.inv_freq",)  # recomputed from the config


def load_decoder(folder: Path, config: DecoderConfig, dtype: torch.dtype, device: torch.device) -> DecoderWeights:
    """Read all weights of the decoder in `folder` as `dtype` onto `device`.

    Raises:
        ModelFolderError: a tensor is missing, has another shape than the config asks for, or is unknown.
    """
    with WeightFiles(folder) as files:
        read = _reader(files, dtype, device)
        embedding = read("model.embed_tokens.weight", (config.vocab_size, config.hidden_size))
        # The config decides on tying; some folders tie and store the head all the same.
        head_name = "lm_head.weight"
        head = embedding if config.has_tied_head else read(head_name, (config.vocab_size, config.hidden_size))
        weights = DecoderWeights(
            embedding=embedding,
            layers=[_read_layer(read, config, index) for index in range(config.num_layers)],
            final_norm=read("model.norm.weight", (config.hidden_size,)),
            head=head,
        )
        unknown = {name for name in files.unread() if not name.endswith(_IGNORED_SUFFIXES) and name != head_name}
    if unknown:
        raise ModelFolderError(f"{len(unknown)} tensors are not part of {config.architecture}, such as {min(unknown)}")
    return weights


Reader = Callable[[str, tuple[int, ...]], Tensor]


def _reader(files: WeightFiles, dtype: torch.dtype, device: torch.device) -> Reader:
    return lambda name, shape: files.read(name, shape, dtype).to(device)


def _read_layer(read: Reader, config: DecoderConfig, index: int) -> DecoderLayer:
    prefix = f"model.layers.{index}."
    hidden = config.hidden_size
    qkv = {"q_proj": config.q_size, "k_proj": config.kv_size, "v_proj": config.kv_size}
    gate_up = {"gate_proj": config.intermediate_size, "up_proj": config.intermediate_size}

    def stack(path: str, parts: dict[str, int], width: int, has_bias: bool) -> Linear:
        weight = torch.cat([read(f"{prefix}{path}.{name}.weight", (rows, width)) for name, rows in parts.items()])
        if not has_bias:
            return Linear(weight)
        return Linear(weight, torch.cat([read(f"{prefix}{path}.{name}.bias", (rows,)) for name, rows in parts.items()]))

    return DecoderLayer(
        input_norm=read(f"{prefix}input_layernorm.weight", (hidden,)),
        qkv=stack("self_attn", qkv, hidden, config.has_qkv_bias),
        o=stack("self_attn", {"o_proj": hidden}, config.q_size, config.has_o_bias),
        post_norm=read(f"{prefix}post_attention_layernorm.weight", (hidden,)),
        gate_up=stack("mlp", gate_up, hidden, config.has_mlp_bias),
        down=stack("mlp", {"down_proj": hidden}, config.intermediate_size, config.has_mlp_bias),
    )
