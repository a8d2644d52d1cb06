"""Ledger of KV blocks: which are free, which sequence holds which.

Called by the Scheduler only. Owns ids, never a tensor; must not import torch.
Invariant (`check_integrity`): every block is either free or held exactly once.
"""

from collections import deque

from services.generator.core.sequence import Sequence
from services.generator.core.specs import KVCacheSpec
from shared.errors import InternalError


class KVCacheManager:
    """Gives blocks to sequences and takes them back; first freed, first given out again."""

    def __init__(self, spec: KVCacheSpec) -> None:
        self._spec = spec
        self._free: deque[int] = deque(range(spec.num_blocks))

    @property
    def num_free_blocks(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    @property
    def num_used_blocks(self) -> int:
        """Blocks that some sequence holds."""
        return self._spec.num_blocks - len(self._free)

    def can_hold(self, num_tokens: int) -> bool:
        """Whether an empty pool could hold `num_tokens` positions of one sequence."""
        return self._spec.blocks_for(num_tokens) <= self._spec.num_blocks

    def num_missing_blocks(self, sequence: Sequence, num_tokens: int) -> int:
        """Blocks that `sequence` still needs to hold `num_tokens` positions."""
        return max(0, self._spec.blocks_for(num_tokens) - len(sequence.block_ids))

    def grow(self, sequence: Sequence, num_tokens: int) -> bool:
        """Make `sequence` hold `num_tokens` positions; answers False, changing nothing, where blocks run short."""
        missing = self.num_missing_blocks(sequence, num_tokens)
        if missing > len(self._free):
            return False
        sequence.block_ids.extend(self._free.popleft() for _ in range(missing))
        return True

    def free(self, sequence: Sequence) -> None:
        """Take back all blocks of `sequence`; no plan that reads them may be in flight."""
        self._free.extend(sequence.block_ids)
        sequence.block_ids.clear()

    def check_integrity(self, sequences: list[Sequence]) -> None:
        """Raise InternalError unless free and held blocks are all blocks, each once; `sequences` are all that hold any."""
        held = [block for sequence in sequences for block in sequence.block_ids]
        if sorted([*held, *self._free]) != list(range(self._spec.num_blocks)):
            raise InternalError("a KV block is lost or held twice; this is a bug")
