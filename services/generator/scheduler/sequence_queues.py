"""Where every sequence is: being prepared, waiting, running or retiring, and what it holds in each of these places.

Owned by the Scheduler, which decides; each transition here keeps the ledgers of rows, blocks, adapters, images and grammars in step
with it. Must not import torch.
"""

from collections import deque

from services.generator.core.adapter_version import AdapterVersion
from services.generator.core.sequence import Sequence, SequenceStatus
from services.generator.scheduler.adapter_registry import AdapterRegistry
from services.generator.scheduler.deadlines import Clock
from services.generator.scheduler.encoder_cache_manager import EncoderCacheManager
from services.generator.scheduler.grammars import GrammarManager, RequestKey
from services.generator.scheduler.kv_cache_manager import KVCacheManager
from shared.errors import InternalError


class SequenceQueues:
    """All sequences that have not ended, and those that have but are still read by a step in flight.

    Attributes:
        waiting: for a row, in the order in which they are admitted.
        running: in the order in which they were admitted.
        suspects: were in a step that failed, and have not sampled a token since.
        admitted: have leased their adapters since their clients were told last which ones these are.
    """

    def __init__(
        self,
        num_rows: int,
        kv_cache: KVCacheManager,
        grammars: GrammarManager | None,
        adapters: AdapterRegistry,
        encoder_cache: EncoderCacheManager,
        clock: Clock,
    ) -> None:
        self._num_rows = num_rows
        self._kv_cache = kv_cache
        self._grammars = grammars
        self._adapters = adapters
        self._encoder_cache = encoder_cache
        self._clock = clock
        self._sequences: dict[RequestKey, Sequence] = {}
        self._preparing: list[Sequence] = []
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.suspects: deque[Sequence] = deque()
        self.admitted: list[Sequence] = []
        self._retiring: list[Sequence] = []
        self._free_rows = list(range(num_rows - 1, -1, -1))
        self._oldest_step_id = 0
        self.num_preemptions = 0

    def __len__(self) -> int:
        return len(self._sequences)

    @property
    def not_running(self) -> list[Sequence]:
        """All that wait, for a row or for their grammar first, the preempted ones among them."""
        return [*self.waiting, *self._preparing]

    @property
    def is_preparing(self) -> bool:
        """Whether some wait for their grammars."""
        return bool(self._preparing)

    @property
    def has_free_row(self) -> bool:
        """Whether one more sequence can run."""
        return bool(self._free_rows)

    @property
    def num_retiring_blocks(self) -> int:
        """Blocks that come back with the steps in flight, counted once for each holder."""
        return sum(len(sequence.block_ids) for sequence in self._retiring)

    def find(self, key: RequestKey) -> Sequence | None:
        """The sequence of a request that has not ended."""
        return self._sequences.get(key)

    def accept(self, sequence: Sequence) -> None:
        """A new sequence waits for a row, or for its grammar first."""
        self._sequences[sequence.key] = sequence
        if sequence.adapter is not None:
            self._adapters.accept(sequence.adapter, self._clock())
        if self._grammars is not None and sequence.request.sampling.grammar is not None:
            self._grammars.begin(sequence.key, sequence.request.sampling.grammar)
            self._preparing.append(sequence)
        else:
            self.waiting.append(sequence)

    def queue_prepared(self) -> None:
        """Let those wait for a row whose grammars are compiled by now."""
        if self._grammars is None or not self._preparing:
            return
        ready = [sequence for sequence in self._preparing if self._grammars.is_ready(sequence.key)]
        self.waiting.extend(ready)
        self._preparing = [sequence for sequence in self._preparing if sequence not in ready]

    def put_first(self, sequence: Sequence) -> None:
        """A waiting sequence goes to the head of the queue."""
        self.waiting.remove(sequence)
        self.waiting.appendleft(sequence)

    def start(self, index: int) -> None:
        """The waiting sequence at `index` gets a row and runs; its adapter must be able to enter, its images to find rows."""
        sequence = self.waiting[index]
        del self.waiting[index]
        sequence.row = self._free_rows.pop()
        sequence.status = SequenceStatus.RUNNING
        self.running.append(sequence)
        sequence.blocked_since_ms = None
        if sequence.adapter is not None:
            self._enter(sequence, sequence.adapter)
        if sequence.request.images:
            self._encoder_cache.lease(sequence)

    def preempt(self, sequence: Sequence) -> None:
        """A running sequence goes back to the head of the queue, to be computed anew."""
        self._leave_running(sequence)
        sequence.status = SequenceStatus.PREEMPTED
        sequence.num_computed_tokens = 0
        self.waiting.appendleft(sequence)
        self.num_preemptions += 1
        self._retire(sequence)

    def finish(self, sequence: Sequence) -> None:
        """A sequence ends, wherever it is."""
        self.clear_suspicion(sequence)
        if sequence.status is SequenceStatus.RUNNING:
            self._leave_running(sequence)
        elif sequence in self._preparing:
            self._preparing.remove(sequence)
        else:
            self.waiting.remove(sequence)
        if sequence.adapter is not None:
            self._adapters.release(sequence.adapter, was_leased=sequence.has_lease)
        sequence.status = SequenceStatus.FINISHED
        del self._sequences[sequence.key]
        if self._grammars is not None:
            self._grammars.end(sequence.key)
        if sequence not in self._retiring:
            self._retire(sequence)

    def clear_suspicion(self, sequence: Sequence) -> None:
        """It is not, or no more, to be run alone."""
        if sequence in self.suspects:
            self.suspects.remove(sequence)

    def release_retired(self, oldest_step_id: int) -> None:
        """Take back rows and blocks that no step from `oldest_step_id` on uses."""
        self._oldest_step_id = oldest_step_id
        kept: list[Sequence] = []
        for sequence in self._retiring:
            if sequence.last_step_id >= oldest_step_id:
                kept.append(sequence)
                continue
            self._kv_cache.free(sequence)
            if sequence.row is not None:
                self._free_rows.append(sequence.row)
                sequence.row = None
        self._retiring = kept

    def check_integrity(self) -> None:
        """Raise InternalError where the ledgers disagree."""
        holders = {id(s): s for s in [*self._sequences.values(), *self._retiring]}
        self._kv_cache.check_integrity(holders.values())
        self._adapters.check_integrity(self._sequences.values(), self.running)
        self._encoder_cache.check_integrity(self.running)
        rows = [s.row for s in holders.values() if s.row is not None]
        if sorted([*rows, *self._free_rows]) != list(range(self._num_rows)):
            raise InternalError("a row is lost or held twice; this is a bug")
        if len(self.running) + len(self.waiting) + len(self._preparing) != len(self._sequences):
            raise InternalError("a sequence is in no queue or in two; this is a bug")
        if self._grammars is not None:
            self._grammars.check_integrity([key for s in self._sequences.values() if (key := grammar_key(s))])

    def _enter(self, sequence: Sequence, adapter: AdapterVersion) -> None:
        now_ms = self._clock()
        self._adapters.enter(adapter, now_ms)
        if not sequence.has_lease:
            sequence.has_lease = True
            self._adapters.lease(adapter, now_ms)
            self.admitted.append(sequence)

    def _leave_running(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        if sequence.adapter is not None:
            self._adapters.leave(sequence.adapter)
        self._encoder_cache.release(sequence)

    def _retire(self, sequence: Sequence) -> None:
        """Give back row and blocks, now or when the last plan that uses them is committed."""
        self._retiring.append(sequence)
        self.release_retired(self._oldest_step_id)


def grammar_key(sequence: Sequence) -> RequestKey | None:
    """Its key in the ledger of grammars, or None where it has none there."""
    has_grammar = sequence.request.sampling.grammar is not None and sequence.status is not SequenceStatus.FINISHED
    return sequence.key if has_grammar else None
