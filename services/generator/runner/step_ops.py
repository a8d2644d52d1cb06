"""The decoder's operations for one step: the chosen backends, with the step's inputs and each layer's adapters filled in.

Made by the ModelRunner once per step. Owns nothing.
"""

from torch import Tensor

from services.generator.adapters.modules import EMBEDDING_KEY
from services.generator.layers.adapter_group import AdapterGroup
from services.generator.layers.backends import Attention, LayerKernels
from services.generator.layers.forward_batch import ForwardBatch
from services.generator.runner.adapter_bank import AdapterBank
from shared.modeling.decoder import DecoderLayer, DecoderOps, Linear, Norm


class StepOps(DecoderOps):
    """See `DecoderOps`.

    Args:
        rotary: [T, D], see `rope_table`.
    """

    def __init__(
        self, batch: ForwardBatch, attention: Attention, kernels: LayerKernels, bank: AdapterBank | None, rotary: Tensor
    ) -> None:
        self._batch = batch
        self._attention = attention
        self._kernels = kernels
        self._bank = bank
        self._rotary = rotary

    def embed(self, embedding: Tensor, token_ids: Tensor) -> Tensor:
        """The base model's rows and each row's adapter, or what the encoder says of an image."""
        adapters = None if self._bank is None else self._bank.group(EMBEDDING_KEY)
        hidden = self._kernels.embed(embedding, token_ids, adapters, self._batch.adapters)
        images = self._batch.images
        return hidden if images is None else hidden.index_copy_(0, images.tokens, images.rows)

    def project(self, layer: int, group: str, linear: Linear, x: Tensor) -> Tensor:
        """Base projection of every row at once, and each row's adapter."""
        return self._kernels.project(linear, x, self._group(layer, group), self._batch.adapters)

    def gate(self, index: int, layer: DecoderLayer, x: Tensor) -> Tensor:
        """The same, and the activation of the MLP."""
        return self._kernels.gate(layer.gate_up, x, self._group(index, "gate_up"), self._batch.adapters)

    def attend(self, index: int, layer: DecoderLayer, qkv: Tensor) -> Tensor:
        """Attention over the paged cache."""
        return self._attention(index, layer, qkv, self._batch, self._rotary)

    def norm(self, x: Tensor, norm: Norm) -> Tensor:
        """Norm of what the first layer reads."""
        return self._kernels.norm(x, norm)

    def project_norm(
        self, layer: int, group: str, linear: Linear, x: Tensor, residual: Tensor, norm: Norm
    ) -> tuple[Tensor, Tensor]:
        """A projection, its sum with the residual, and the norm of that."""
        return self._kernels.project_norm(linear, x, residual, norm, self._group(layer, group), self._batch.adapters)

    def _group(self, layer: int, name: str) -> AdapterGroup | None:
        return None if self._bank is None else self._bank.group((layer, name))
