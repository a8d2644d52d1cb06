"""A batch of sequences without padding: all tokens in one row, and where each sequence begins.

Built by the encoders' callers, read by encoders and pooling. Linear layers run on the flat tokens and never see padding;
attention that needs sequences side by side asks for the padded view and comes back.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Self

import numpy as np
import torch
from torch import Tensor

from shared.modeling.transfers import to_device


@dataclass(frozen=True)
class RaggedBatch:
    """S sequences of together T tokens; the longest has `max_length`.

    Attributes:
        token_ids: [T] int64.
        positions: [T] int64, place of each token in its sequence, from 0.
        sequence_ids: [T] int64, sequence each token belongs to.
        lengths: [S] int64.
        cu_lengths: [S + 1] int64, where each sequence begins in the flat row.
        token_types: [T] int64, which text of a pair each token belongs to; None where all are 0.
    """

    token_ids: Tensor
    positions: Tensor
    sequence_ids: Tensor
    lengths: Tensor
    cu_lengths: Tensor
    max_length: int
    token_types: Tensor | None = None

    @property
    def num_sequences(self) -> int:
        """S."""
        return self.lengths.shape[0]

    @cached_property
    def padded_index(self) -> Tensor | None:
        """[T] int64, row of each token in the padded view; None where all sequences have the same length."""
        return None if self._is_uniform else self.sequence_ids * self.max_length + self.positions

    @cached_property
    def mask(self) -> Tensor | None:
        """[S, 1, 1, max_length] bool, true where there is a token; None with `padded_index`."""
        if self._is_uniform:
            return None
        places = torch.arange(self.max_length, device=self.lengths.device)
        return (places < self.lengths[:, None])[:, None, None, :]

    @cached_property
    def cu_lengths_int32(self) -> Tensor:
        """`cu_lengths` as kernels of flash attention read it."""
        return self.cu_lengths.int()

    @property
    def _is_uniform(self) -> bool:
        return self.token_ids.shape[0] == self.max_length * self.num_sequences

    @classmethod
    def from_token_ids(
        cls,
        sequences: Sequence[Sequence[int]],
        device: torch.device,
        token_types: Sequence[Sequence[int]] | None = None,
    ) -> Self:
        """Lay out `sequences`, none of them empty, on `device`, with a type for each of their tokens if they have any."""
        lengths = np.fromiter(map(len, sequences), np.int64, len(sequences))
        cu_lengths = np.concatenate(([0], np.cumsum(lengths)))
        max_length, num_tokens = int(lengths.max()), int(cu_lengths[-1])
        flat = np.fromiter(chain.from_iterable(sequences), np.int64, num_tokens)
        types = None if token_types is None else np.fromiter(chain.from_iterable(token_types), np.int64, num_tokens)
        sequence_ids = np.repeat(np.arange(len(sequences)), lengths)
        positions = np.arange(num_tokens) - cu_lengths[sequence_ids]
        return cls(
            token_ids=to_device(flat, device),
            positions=to_device(positions, device),
            sequence_ids=to_device(sequence_ids, device),
            lengths=to_device(lengths, device),
            cu_lengths=to_device(cu_lengths, device),
            max_length=max_length,
            token_types=None if types is None else to_device(types, device),
        )

    def pad(self, flat: Tensor) -> Tensor:
        """[T, N] to [S, max_length, N]; places without a token are zero."""
        width = flat.shape[1]
        if self.padded_index is None:
            return flat.view(self.num_sequences, self.max_length, width)
        padded = flat.new_zeros(self.num_sequences * self.max_length, width)
        padded.index_copy_(0, self.padded_index, flat)
        return padded.view(self.num_sequences, self.max_length, width)

    def unpad(self, padded: Tensor) -> Tensor:
        """[S, max_length, N] to [T, N], the reverse of `pad`."""
        flat = padded.reshape(self.num_sequences * self.max_length, -1)
        return flat if self.padded_index is None else flat.index_select(0, self.padded_index)
