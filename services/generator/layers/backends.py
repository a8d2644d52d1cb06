"""Which code computes attention and the kernels of a layer: chosen by name at start, never by what can be imported.

Called by `engine.build`, which logs the choice, and by the runner, which makes the objects. Triton is imported only where
it is used.
"""

import importlib.util
import os
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from services.generator.layers.adapter_group import AdapterGroup
from services.generator.layers.forward_batch import AdapterRows, ForwardBatch
from services.generator.layers.reference_attention import ReferenceAttention
from services.generator.layers.reference_kernels import ReferenceKernels
from shared.modeling.config import DecoderConfig
from shared.modeling.decoder import DecoderLayer, Linear, Norm
from shared.settings.errors import StartError

BackendName = Literal["reference", "triton"]


@dataclass(frozen=True, slots=True)
class Backends:
    """The choice."""

    attention: BackendName
    kernels: BackendName

    @property
    def can_replay(self) -> bool:
        """Whether a step depends on fixed addresses and sizes only, so that a CUDA graph of it can be replayed."""
        return self.attention == "triton" and self.kernels == "triton"


def choose(attention: BackendName | Literal["auto"], kernels: BackendName | Literal["auto"], device: str) -> Backends:
    """What `auto` stands for on a type of device."""
    best: BackendName = "triton" if device == "cuda" else "reference"
    return Backends(best if attention == "auto" else attention, best if kernels == "auto" else kernels)


def check(backends: Backends, device: str, dtype: torch.dtype) -> None:
    """Refuse what could load a model and then run no step, or none that is right.

    Raises:
        StartError: Triton is chosen and cannot compute here; says what to start with.
    """
    if "triton" not in (backends.attention, backends.kernels):
        return
    advice = "start with --attention-backend reference --kernel-backend reference"
    if importlib.util.find_spec("triton") is None:
        raise StartError(f"the triton backend needs the package triton, which is not installed; {advice}")
    if device != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        raise StartError(
            f"the triton backend needs a GPU, or on a CPU its slow interpreter, TRITON_INTERPRET=1; {advice}"
        )
    if device != "cuda" and dtype == torch.bfloat16:
        raise StartError(f"Triton's interpreter computes bfloat16 wrongly; {advice}, or choose another --dtype")


class Attention(Protocol):
    """Attention of one layer over a paged cache."""

    def __call__(self, index: int, layer: DecoderLayer, qkv: Tensor, batch: ForwardBatch, rotary: Tensor) -> Tensor:
        """Normalise heads, rotate, write K and V to the cache, attend over it.

        Args:
            qkv: [T, (Hq + 2 Hkv) D]; may be changed.
            rotary: [T, D], see `rope_table`.
        Returns:
            [T, Hq * D], to be read before the next call.
        """
        ...


class LayerKernels(Protocol):
    """What a layer does besides attention, and what a step does before and after its layers."""

    def project(self, projection: Linear, x: Tensor, group: AdapterGroup | None, rows: AdapterRows | None) -> Tensor:
        """`x` [T, in] to [T, out], each row's adapter added; `group` is None where there is no room for any."""
        ...

    def project_norm(
        self,
        projection: Linear,
        x: Tensor,
        residual: Tensor,
        norm: Norm,
        group: AdapterGroup | None,
        rows: AdapterRows | None,
    ) -> tuple[Tensor, Tensor]:
        """The same, its sum with `residual` [T, out], which may be changed, and the norm of that sum."""
        ...

    def gate(self, projection: Linear, x: Tensor, group: AdapterGroup | None, rows: AdapterRows | None) -> Tensor:
        """The same with the gate and up projections of an MLP, and their activation: `x` [T, C] to [T, F]."""
        ...

    def embed(
        self, embedding: Tensor, token_ids: Tensor, group: AdapterGroup | None, rows: AdapterRows | None
    ) -> Tensor:
        """`token_ids` [T] to [T, C], likewise."""
        ...

    def norm(self, x: Tensor, norm: Norm) -> Tensor:
        """Of `x` [T, C], which stays as it is."""
        ...

    def rows_by_adapter(self, row_slots: Tensor) -> AdapterRows:
        """What `project` takes, from the slot of every row [N] int32, on the device."""
        ...

    def step_indices(
        self,
        given_ids: Tensor,
        positions: Tensor,
        token_rows: Tensor,
        tables: tuple[Tensor, Tensor],
        *,
        block_size: int,
        marks: tuple[int, int],
    ) -> tuple[Tensor, Tensor]:
        """Ids and slots of a step's tokens, [T] int64; `tables` are the block table and the rows' last tokens,
        `marks` what stands for a token that only the device knows and for one that only fills a graph."""
        ...

    def argmax(self, logits: Tensor) -> Tensor:
        """[N, V] to [N] int64."""
        ...

    def sample(
        self, logits: Tensor, temperature: Tensor, filters: tuple[Tensor, Tensor, Tensor] | None, uniforms: Tensor
    ) -> Tensor:
        """[N, V] to [N] int64; `filters` are top_k, top_p and min_p of each row, or None where no row has one."""
        ...


def make_attention(
    backends: Backends,
    config: DecoderConfig,
    cache: tuple[Tensor, Tensor],
    *,
    block_size: int,
    max_tokens: int,
    max_rows: int,
) -> Attention:
    """Attention over a cache of keys and values; see `TritonAttention` for the arguments."""
    if backends.attention == "reference":
        return ReferenceAttention(config, *cache)
    from services.generator.layers.triton_attention import TritonAttention

    return TritonAttention(config, *cache, block_size=block_size, max_tokens=max_tokens, max_rows=max_rows)


def make_kernels(backends: Backends) -> LayerKernels:
    """The other kernels."""
    if backends.kernels == "reference":
        return ReferenceKernels()
    from services.generator.layers.triton_kernels import TritonKernels

    return TritonKernels()
