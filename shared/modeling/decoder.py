"""A Llama-class decoder: weights as named tensors, and a forward pass that reads like the paper.

What differs between its users comes in as `DecoderOps`: how projections are made (with or without adapters) and how attention
sees the past (a paged cache, or none). Layers get everything as arguments; nothing here is global and nothing is cached.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from shared.modeling.config import DecoderConfig


@dataclass(frozen=True, slots=True)
class Linear:
    """A projection: `weight` [out, in], `bias` [out] or None."""

    weight: Tensor
    bias: Tensor | None = None


class Norm(NamedTuple):
    """A root-mean-square norm: `weight` [C], and what is added to the mean."""

    weight: Tensor
    eps: float


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """Weights of one block; q, k, v and gate, up are stacked so that each pair or triple is one product.

    `q_norm` and `k_norm` [D] are None where the family normalises no heads.
    """

    input_norm: Tensor
    qkv: Linear
    q_norm: Tensor | None
    k_norm: Tensor | None
    o: Linear
    post_norm: Tensor
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """All weights; `head` is `embedding` itself where the folder ties them."""

    embedding: Tensor
    layers: list[DecoderLayer]
    final_norm: Tensor
    head: Tensor

    def tensors(self) -> list[Tensor]:
        """All tensors, a tied head once."""
        layers = [tensor for layer in self.layers for tensor in _tensors(layer)]
        different = {id(tensor): tensor for tensor in (self.embedding, *layers, self.final_norm, self.head)}
        return list(different.values())

    @property
    def num_bytes(self) -> int:
        """Memory of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors())


def _tensors(layer: DecoderLayer) -> list[Tensor]:
    linears = (layer.qkv, layer.o, layer.gate_up, layer.down)
    norms = (layer.input_norm, layer.post_norm, layer.q_norm, layer.k_norm)
    biases = (linear.bias for linear in linears)
    return [linear.weight for linear in linears] + [tensor for tensor in (*norms, *biases) if tensor is not None]


class DecoderOps(Protocol):
    """What the decoder's user supplies for one step; what is written out here is for users without kernels of their own."""

    def embed(self, embedding: Tensor, token_ids: Tensor) -> Tensor:
        """Token ids [T] to [T, C]."""
        return functional.embedding(token_ids, embedding)

    def project(self, layer: int, group: str, linear: Linear, x: Tensor) -> Tensor:
        """`x` [T, in] to [T, out]; `group` is qkv, o, gate_up or down."""
        ...

    def attend(self, index: int, layer: DecoderLayer, qkv: Tensor) -> Tensor:
        """Normalise heads, rotate, remember and attend: [T, (Hq + 2 Hkv) D] to [T, Hq D]."""
        ...

    def norm(self, x: Tensor, norm: Norm) -> Tensor:
        """The norm of `x` [T, C], which stays as it is."""
        return rms_norm(x, *norm)

    def project_norm(
        self, layer: int, group: str, linear: Linear, x: Tensor, residual: Tensor, norm: Norm
    ) -> tuple[Tensor, Tensor]:
        """`residual` [T, C] + the projection of `x`, and the norm of that sum; may change `residual`."""
        total = residual + self.project(layer, group, linear, x)
        return total, rms_norm(total, *norm)

    def gate(self, index: int, layer: DecoderLayer, x: Tensor) -> Tensor:
        """The gate and up projections of an MLP, and their activation: [T, C] to [T, F]."""
        return silu_and_mul(self.project(index, "gate_up", layer.gate_up, x))


def decoder_forward(weights: DecoderWeights, config: DecoderConfig, ops: DecoderOps, token_ids: Tensor) -> Tensor:
    """Hidden states after the last norm.

    Args:
        token_ids: [T] int64.
    Returns:
        [T, hidden_size].
    """
    hidden = ops.embed(weights.embedding, token_ids)  # [T, C]
    next_norms = [layer.input_norm for layer in weights.layers[1:]] + [weights.final_norm]
    x = ops.norm(hidden, Norm(weights.layers[0].input_norm, config.norm_eps))
    for index, (layer, next_norm) in enumerate(zip(weights.layers, next_norms, strict=True)):
        x = ops.attend(index, layer, ops.project(index, "qkv", layer.qkv, x))
        hidden, x = ops.project_norm(index, "o", layer.o, x, hidden, Norm(layer.post_norm, config.norm_eps))
        x = ops.gate(index, layer, x)
        hidden, x = ops.project_norm(index, "down", layer.down, x, hidden, Norm(next_norm, config.norm_eps))
    return x


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm, arXiv:1910.07467: x / sqrt(mean(x²) + eps) · weight, computed in fp32.

    Args:
        x: [..., C].
        weight: [C].
    """
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    return weight * (wide * scale).to(x.dtype)


def norm_heads(qkv: Tensor, layer: DecoderLayer, config: DecoderConfig) -> Tensor:
    """RMSNorm of each query and key head, where the family has it (Qwen3 Technical Report, arXiv:2505.09388, §2).

    Args:
        qkv: [T, (Hq + 2 Hkv) D].
    Returns:
        The same shape; `qkv` itself where there is nothing to do.
    """
    if layer.q_norm is None or layer.k_norm is None:
        return qkv
    heads = qkv.view(len(qkv), -1, config.head_dim)  # [T, Hq + 2 Hkv, D]
    q, k, v = torch.split(heads, [config.num_heads, config.num_kv_heads, config.num_kv_heads], dim=1)
    q, k = rms_norm(q, layer.q_norm, config.norm_eps), rms_norm(k, layer.k_norm, config.norm_eps)
    return torch.cat([q, k, v], dim=1).flatten(1)


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) · up, with gate and up side by side: [T, 2 F] to [T, F]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate) * up


def linear(projection: Linear, x: Tensor) -> Tensor:
    """x Wᵀ + b, [T, in] to [T, out].

    On a CPU it is computed as (W xᵀ)ᵀ: for the few rows of a decode step that is 2 to 3 times as fast as x Wᵀ there, since
    the long side of the product is then the one that the library blocks over.
    """
    if x.device.type != "cpu" or x.dtype != torch.float32:
        return functional.linear(x, projection.weight, projection.bias)
    out = torch.mm(projection.weight, x.t()).t()
    return out if projection.bias is None else out + projection.bias
