"""The vision tower of Qwen2-VL and Qwen2.5-VL: from pixels to one row of the decoder for each block of patches.

Sources: Qwen2-VL, arXiv:2409.12191, §2.1; Qwen2.5-VL, arXiv:2502.13923, §2.1.1, with transformers' order of operations. Made by
`qwen_loader`, called by the runner. Patches of all images share the products; attention keeps to images and windows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from services.generator.core.images import PromptImage
from services.generator.vision.pixel_values import PixelScale
from services.generator.vision.qwen_config import QwenVisionConfig
from services.generator.vision.qwen_layout import Run, lay_out
from shared.modeling.decoder import rms_norm, silu_and_mul
from shared.modeling.encoder_layers import ACTIVATIONS, LayerNorm
from shared.modeling.linear import LinearLayer
from shared.modeling.rope import apply_rope
from shared.modeling.transfers import to_device

NORM_EPS = 1e-6
"""Of all norms of a tower; not in config.json."""


@dataclass(frozen=True)
class RmsNorm:
    """Normalisation over the last axis without a mean."""

    weight: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """[..., width] to the same."""
        return rms_norm(x, self.weight, NORM_EPS)


@dataclass(frozen=True)
class QwenLayer:
    """One block; `up` gives gate and up side by side where the MLP is gated."""

    attention_norm: LayerNorm | RmsNorm
    qkv: LinearLayer
    attention_out: LinearLayer
    mlp_norm: LayerNorm | RmsNorm
    up: LinearLayer
    down: LinearLayer


@dataclass(frozen=True)
class Merger:
    """The patches of a block side by side, through an MLP to the decoder's width."""

    norm: LayerNorm | RmsNorm
    first: LinearLayer
    second: LinearLayer

    def __call__(self, hidden: Tensor, num_blocks: int) -> Tensor:
        """[N, width] to [B, C]."""
        return self.second(functional.gelu(self.first(self.norm(hidden).view(num_blocks, -1))))


class QwenTower:
    """See `VisionEncoder`. Rounding may differ in the last digits with the images, as that of any product does.

    Args:
        patch_projection: from the numbers of a patch to the tower's width.
    """

    def __init__(
        self,
        config: QwenVisionConfig,
        scale: PixelScale,
        patch_projection: LinearLayer,
        layers: Sequence[QwenLayer],
        merger: Merger,
        *,
        num_bytes: int,
    ) -> None:
        self.num_bytes = num_bytes
        self._config = config
        self._scale = scale
        self._patch_projection = patch_projection
        self._layers = layers
        self._merger = merger
        self._activation = silu_and_mul if config.is_gated else ACTIVATIONS["quick_gelu"]
        self._dtype, self._device = merger.norm.weight.dtype, merger.norm.weight.device
        exponents = torch.arange(0, config.head_dim // 2, 2).float() / (config.head_dim // 2)
        self._frequencies = (1.0 / config.theta**exponents).to(self._device)  # [D/4]

    @torch.inference_mode()
    def __call__(self, images: Sequence[PromptImage]) -> list[Tensor]:
        """[num_rows, C] of each."""
        if not images:
            return []
        config = self._config
        layout = lay_out([image.grid for image in images], config.merge_size, config.window)
        order, coordinates = (to_device(each, self._device) for each in (layout.order, layout.coordinates))
        patches = torch.cat([to_patches(self._scale([image.pixels])[0], config) for image in images])
        hidden = self._patch_projection(patches.to(self._dtype))  # [N, width]
        hidden = hidden.view(len(order), -1).index_select(0, order).view_as(hidden)
        rotary = self._rotary_rows(coordinates)
        for index, layer in enumerate(self._layers):
            runs = layout.images if index in config.full_layers else layout.windows
            hidden = self._layer(layer, hidden, rotary, runs)
        rows = self._merger(hidden, len(order))
        in_place = torch.empty_like(rows).index_copy_(0, order, rows)
        return list(torch.split(in_place, [image.num_rows for image in images]))

    def _rotary_rows(self, coordinates: Tensor) -> Tensor:
        """Rows for `apply_rope`, [N, D] in fp32: half the pairs of a head turn by the patch's row, half by its column."""
        angles = (coordinates[:, :, None] * self._frequencies).flatten(1)  # [N, D/2]
        return torch.cat([angles.cos(), angles.sin()], dim=-1)

    def _layer(self, layer: QwenLayer, hidden: Tensor, rotary: Tensor, runs: Sequence[Run]) -> Tensor:
        qkv = layer.qkv(layer.attention_norm(hidden)).view(len(hidden), 3, self._config.num_heads, -1)
        hidden = hidden + layer.attention_out(_attend(qkv, rotary, runs))
        return hidden + layer.down(self._activation(layer.up(layer.mlp_norm(hidden))))


def to_patches(values: Tensor, config: QwenVisionConfig) -> Tensor:
    """Patches block by block: those of one block are neighbours, row by row.

    Args:
        values: [height, width, 3], sides in whole blocks.
    Returns:
        [N, 3 · F · P · P]: channel, frame, row, column; a still image is F times the same frame.
    """
    (height, width, _), patch, merge = values.shape, config.patch_size, config.merge_size
    blocks = values.view(height // (merge * patch), merge, patch, width // (merge * patch), merge, patch, 3)
    frame = blocks.permute(0, 3, 1, 4, 6, 2, 5).flatten(0, 3)  # [N, 3, P, P]
    return frame[:, :, None].expand(-1, -1, config.temporal_patch_size, -1, -1).flatten(1)


def _attend(qkv: Tensor, rotary: Tensor, runs: Sequence[Run]) -> Tensor:
    """[N, 3, H, D] to [N, H · D]; heads are rotated in fp32, as in the reference."""
    qk = apply_rope(qkv[:, :2].flatten(1, 2).float(), rotary).to(qkv.dtype)
    q, k = qk.chunk(2, dim=1)
    parts = [_attend_run(q, k, qkv[:, 2], run) for run in runs]
    return torch.cat(parts)


def _attend_run(q: Tensor, k: Tensor, v: Tensor, run: Run) -> Tensor:
    q, k, v = (each[run.start : run.end].view(run.count, run.length, *each.shape[1:]) for each in (q, k, v))
    attended = functional.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
    return attended.transpose(1, 2).flatten(2).flatten(0, 1)  # from [count, H, length, D]
