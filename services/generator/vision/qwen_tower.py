"""The vision tower of Qwen2-VL and Qwen2.5-VL: from pixels to one row of the decoder for each block of patches.

Sources: Qwen2-VL, arXiv:2409.12191, §2.1; Qwen2.5-VL, arXiv:2502.13923, §2.1.1, with transformers' order of operations. Made by
`qwen_loader`, called by the runner. Patches of all images share the products; attention keeps to images and windows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from services.generator.core.images import PromptImage
from services.generator.images.qwen_recipe import QwenPreprocessing
from services.generator.vision.qwen_config import QwenVisionConfig
from services.generator.vision.qwen_layout import Run, lay_out
from services.generator.vision.qwen_patches import to_patches
from shared.modeling.decoder import Linear, rms_norm, silu_and_mul
from shared.modeling.rope import apply_rope

_EPS = 1e-6


@dataclass(frozen=True, slots=True)
class Norm:
    """LayerNorm, or RMSNorm where there is no `bias`; both [width]."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        if self.bias is None:
            return rms_norm(x, self.weight, _EPS)
        return functional.layer_norm(x, self.weight.shape, self.weight, self.bias, _EPS)


@dataclass(frozen=True, slots=True)
class TowerLayer:
    """Weights of one block; `up` is gate and up, one below the other, where the MLP is gated."""

    attention_norm: Norm
    qkv: Linear
    o: Linear
    mlp_norm: Norm
    up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class TowerWeights:
    """All weights; `patch` is [width, numbers of a patch]."""

    patch: Tensor
    layers: list[TowerLayer]
    merger_norm: Norm
    merger_up: Linear
    merger_down: Linear


class QwenTower:
    """See `VisionEncoder`.

    Args:
        num_bytes: memory of `weights`.
    """

    def __init__(
        self, config: QwenVisionConfig, preprocessing: QwenPreprocessing, weights: TowerWeights, num_bytes: int
    ) -> None:
        self.num_bytes = num_bytes
        self._config = config
        self._preprocessing = preprocessing
        self._weights = weights
        # As in the reference, a power of the inverse of what the decoder's table takes: bit for bit the same frequencies.
        num_pairs = config.head_dim // 4
        exponents = torch.arange(0, 2 * num_pairs, 2, dtype=torch.float) / (2 * num_pairs)
        self._frequencies = (1.0 / config.theta**exponents).to(weights.patch.device)  # [D/4]

    def __call__(self, images: Sequence[PromptImage]) -> list[Tensor]:
        """The rows of each image, [num_rows, C]."""
        config, patch = self._config, self._weights.patch
        patches = torch.cat([to_patches(image.pixels, self._preprocessing, patch.device) for image in images])
        layout = lay_out([image.grid for image in images], config.merge_size, config.window)
        order = self._on_device(layout.order)
        hidden = functional.linear(patches.to(patch.dtype), patch)  # [N, width]
        hidden = hidden.view(len(order), -1).index_select(0, order).view_as(hidden)
        rotary = self._rotary_rows(self._on_device(layout.coordinates))
        for index, layer in enumerate(self._weights.layers):
            runs = layout.images if index in config.full_layers else layout.windows
            hidden = self._layer(layer, hidden, rotary, runs)
        rows = self._merge(hidden)
        in_place = torch.empty_like(rows).index_copy_(0, order, rows)
        return list(torch.split(in_place, [image.num_rows for image in images]))

    def _on_device(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self._weights.patch.device, non_blocking=True)

    def _rotary_rows(self, coordinates: Tensor) -> Tensor:
        """Rows for `apply_rope`, [N, D] in fp32: half the pairs of a head turn by the patch's row, half by its column."""
        angles = (coordinates[:, :, None] * self._frequencies).flatten(1)  # [N, D/2]
        return torch.cat([angles.cos(), angles.sin()], dim=-1)

    def _layer(self, layer: TowerLayer, hidden: Tensor, rotary: Tensor, runs: Sequence[Run]) -> Tensor:
        qkv = _project(layer.qkv, layer.attention_norm(hidden)).view(len(hidden), 3, self._config.num_heads, -1)
        hidden = hidden + _project(layer.o, _attend(qkv, rotary, runs))
        inner = _project(layer.up, layer.mlp_norm(hidden))
        inner = silu_and_mul(inner) if self._config.is_gated else _quick_gelu(inner)
        return hidden + _project(layer.down, inner)

    def _merge(self, hidden: Tensor) -> Tensor:
        """[N, width] to [B, C]: the patches of a block side by side, through an MLP."""
        weights = self._weights
        blocks = weights.merger_norm(hidden).view(-1, weights.merger_up.weight.shape[1])
        return _project(weights.merger_down, functional.gelu(_project(weights.merger_up, blocks)))


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


def _project(projection: Linear, x: Tensor) -> Tensor:
    return functional.linear(x, projection.weight, projection.bias)


def _quick_gelu(x: Tensor) -> Tensor:
    """x · sigmoid(1.702 x): the approximation in Gaussian Error Linear Units, arXiv:1606.08415, §2."""
    return x * torch.sigmoid(1.702 * x)
