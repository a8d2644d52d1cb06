"""CLIP's and SigLIP's vision tower and LLaVA's projector behind it, in plain torch, for inference.

Made by `vision.llava`, which is also their only caller.
Source: CLIP, arXiv:2103.00020, §2.4, and SigLIP, arXiv:2303.15343; An Image is Worth 16x16 Words, arXiv:2010.11929, §3.1.
We differ: the patch convolution is a product over flattened patches; q, k and v are one product; layers whose outputs nobody
sees do not run.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from shared.modeling.encoder_layers import Activation, LayerNorm
from shared.modeling.linear import LinearLayer


@dataclass(frozen=True)
class PatchEmbeddings:
    """What goes into the first layer: a row per patch, learned positions added.

    Attributes:
        projection: from the 3 * P * P values of a patch, channel by channel, to C features.
        class_row: [C], stands before the patches' rows; None where the family has none.
        positions: [N, C].
        pre_norm: None where the family has none.
        patch_size: P, in pixels.
    """

    projection: LinearLayer
    class_row: Tensor | None
    positions: Tensor
    pre_norm: LayerNorm | None
    patch_size: int

    def __call__(self, values: Tensor) -> Tensor:
        """[B, height, width, 3] in the weights' dtype to [B, N, C]."""
        rows = self.projection(flat_patches(values, self.patch_size))
        if self.class_row is not None:
            rows = torch.cat([self.class_row.expand(len(rows), 1, -1), rows], dim=1)
        rows = rows + self.positions
        return rows if self.pre_norm is None else self.pre_norm(rows)


def flat_patches(values: Tensor, patch_size: int) -> Tensor:
    """The values of each patch, from left to right and then downwards.

    Args:
        values: [B, height, width, 3]; what is left over behind the last whole patch is not seen.
    Returns:
        [B, height // P * (width // P), 3 * P * P].
    """
    batch, height, width = len(values), values.shape[1] // patch_size, values.shape[2] // patch_size
    whole = values[:, : height * patch_size, : width * patch_size]
    patches = whole.reshape(batch, height, patch_size, width, patch_size, 3).permute(0, 1, 3, 5, 2, 4)
    return patches.reshape(batch, height * width, -1)


@dataclass(frozen=True)
class ClipLayer:
    """A layer whose norms come first: x += attention(norm(x)), then x += mlp(norm(x)); every row sees every row."""

    attention_norm: LayerNorm
    qkv: LinearLayer
    attention_out: LinearLayer
    mlp_norm: LayerNorm
    up: LinearLayer
    down: LinearLayer
    activation: Activation
    num_heads: int

    def __call__(self, rows: Tensor) -> Tensor:
        """[B, N, C] to [B, N, C]."""
        rows = rows + self.attention_out(self._attend(self.qkv(self.attention_norm(rows))))
        return rows + self.down(self.activation(self.up(self.mlp_norm(rows))))

    def _attend(self, qkv: Tensor) -> Tensor:
        batch, num_rows, width = qkv.shape
        q, k, v = qkv.view(batch, num_rows, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v)
        return attended.transpose(1, 2).reshape(batch, num_rows, width // 3)


@dataclass(frozen=True)
class ClipTower:
    """Embeddings and as many layers as the features need.

    Attributes:
        feature_layers: whose outputs are the features, side by side; 0 is what goes into the first layer.
    """

    embeddings: PatchEmbeddings
    layers: Sequence[ClipLayer]
    feature_layers: tuple[int, ...]

    def __call__(self, values: Tensor) -> Tensor:
        """[B, height, width, 3] to [B, N, C * len(feature_layers)]."""
        rows = self.embeddings(values)
        features = {0: rows}
        for index, layer in enumerate(self.layers, 1):
            rows = layer(rows)
            if index in self.feature_layers:
                features[index] = rows
        return torch.cat([features[index] for index in self.feature_layers], dim=-1)


@dataclass(frozen=True)
class Projector:
    """From the tower's width to the decoder's: two products and an activation between them (LLaVA-1.5, arXiv:2310.03744, §3.2)."""

    first: LinearLayer
    activation: Activation
    second: LinearLayer

    def __call__(self, features: Tensor) -> Tensor:
        """[..., C] to [..., hidden_size]."""
        return self.second(self.activation(self.first(features)))
