"""Ledger of KV blocks: which sequences hold which, what each contains, which is reused next.

Called by the Scheduler only. Owns ids and counts, never a tensor; must not import torch.
Invariant (`check_integrity`): every block is either free, or held by as many sequences as its count says.

A free block keeps its content until it is given out again, least recently used first, so a later request may still find it.
Only full blocks are shared. A block is found as soon as the step that fills it is planned: steps run in order, and within
a step all keys and values of a layer are written before any is read.
"""

from collections import OrderedDict
from collections.abc import Iterable

from services.generator.core.block_keys import BlockKeys
from services.generator.core.sequence import Sequence
from services.generator.core.specs import KVCacheSpec
from services.generator.scheduler.prefix_cache import PrefixCache
from shared.errors import InternalError


class KVCacheManager:
    """Gives blocks to sequences and takes them back.

    Args:
        keys: makes block keys; None switches prefix caching off.
    """

    def __init__(self, spec: KVCacheSpec, keys: BlockKeys | None = None) -> None:
        self._spec = spec
        self._keys = keys
        self._cache = PrefixCache()
        self._counts = [0] * spec.num_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(spec.num_blocks))
        self.num_queried_tokens = 0
        self.num_hit_tokens = 0

    @property
    def num_free_blocks(self) -> int:
        """Blocks that nobody holds, whether they have content or not."""
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

    def attach_prefix(self, sequence: Sequence) -> None:
        """Give a sequence without blocks those that hold the beginning of its tokens already.

        Its last token is always left to compute, since its logits are wanted; all are where prompt logits are wanted.
        """
        if self._keys is None or sequence.request.sampling.prompt_logprobs is not None:
            return
        num_usable = (sequence.num_tokens - 1) // self._spec.block_size
        self._extend_keys(sequence)
        sequence.block_ids += self._cache.find_run(sequence.block_keys[:num_usable])
        for block_id in sequence.block_ids:
            self._hold(block_id)
        sequence.num_computed_tokens = sequence.num_published_tokens = len(sequence.block_ids) * self._spec.block_size

    def count_hits(self, sequence: Sequence) -> None:
        """Count what the first admission of `sequence` found; a recompute is no query."""
        sequence.num_cached_tokens = sequence.num_computed_tokens
        if self._keys is not None:
            self.num_queried_tokens += sequence.num_prompt_tokens
            self.num_hit_tokens += sequence.num_cached_tokens

    def grow(self, sequence: Sequence, num_tokens: int) -> bool:
        """Make `sequence` hold `num_tokens` positions; answers False, changing nothing, where blocks run short."""
        if num_tokens <= len(sequence.block_ids) * self._spec.block_size:
            return True  # what most tokens of a running sequence meet
        missing = self.num_missing_blocks(sequence, num_tokens)
        if missing > len(self._free):
            return False
        for _ in range(missing):
            block_id, _ = self._free.popitem(last=False)
            self._cache.drop(block_id)
            self._counts[block_id] = 1
            sequence.block_ids.append(block_id)
        return True

    def publish(self, sequence: Sequence) -> None:
        """Let others find the full blocks whose tokens are known and whose computation is planned."""
        size = self._spec.block_size
        if sequence.num_computed_tokens - sequence.num_published_tokens < size:
            return  # what most tokens meet
        num_ready = min(sequence.num_computed_tokens, sequence.num_known_tokens) // size
        if self._keys is None or num_ready * size <= sequence.num_published_tokens:
            return
        self._extend_keys(sequence)
        for index in range(sequence.num_published_tokens // size, num_ready):
            self._cache.insert(sequence.block_keys[index], sequence.block_ids[index])
        sequence.num_published_tokens = num_ready * size

    def free(self, sequence: Sequence) -> None:
        """Take back the blocks of `sequence`; no plan in flight may use them for it."""
        for block_id in reversed(sequence.block_ids):  # the beginning of a prompt is worth most, so it is reused last
            self._counts[block_id] -= 1
            if self._counts[block_id] == 0:
                self._free[block_id] = None
                if block_id not in self._cache:
                    self._free.move_to_end(block_id, last=False)
        sequence.block_ids.clear()
        sequence.num_published_tokens = 0

    def reset_cache(self) -> None:
        """Forget all content, also what running sequences will add to it; blocks in use stay in use."""
        self._cache.clear()
        if self._keys is not None:
            self._keys.start_generation()

    def check_integrity(self, sequences: Iterable[Sequence]) -> None:
        """Raise InternalError where counts and holders disagree; `sequences` are all that hold any block."""
        counts = [0] * self._spec.num_blocks
        for sequence in sequences:
            for block_id in sequence.block_ids:
                counts[block_id] += 1
        free = {block_id for block_id, count in enumerate(counts) if count == 0}
        if counts != self._counts or free != set(self._free) or not self._cache.is_consistent():
            raise InternalError("a KV block is lost or miscounted; this is a bug")

    def _hold(self, block_id: int) -> None:
        self._counts[block_id] += 1
        self._free.pop(block_id, None)

    def _extend_keys(self, sequence: Sequence) -> None:
        assert self._keys is not None  # noqa: S101 - callers return early without keys
        start = len(sequence.block_keys) * self._spec.block_size
        if sequence.num_known_tokens - start >= self._spec.block_size:
            tokens = sequence.known_tokens(start, sequence.num_known_tokens)
            self._keys.extend(sequence.block_keys, tokens, sequence.salt)
