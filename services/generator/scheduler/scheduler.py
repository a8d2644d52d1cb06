"""Chooses who runs in the next step, how many tokens of each, and who gives way when blocks run short.

Called by the engine loop: `schedule` makes a plan, `commit` takes its result. Plans may be in flight when the next is made, so
a sequence advances when it is planned and its sampled token is *pending* until the result is committed. Must not import torch.
First come, first served; a preempted sequence goes back to the head of the queue and is computed anew.
"""

from collections import deque
from collections.abc import Iterable

from services.generator.core.block_keys import PrefixSalt
from services.generator.core.messages import EngineStats, TokenEvent, TokenLogprob
from services.generator.core.plan import IntArray, StepPlan, StepResult
from services.generator.core.request import FinishReason, Request
from services.generator.core.sequence import Sequence, SequenceStatus
from services.generator.core.specs import SchedulerLimits
from services.generator.scheduler.grammars import GrammarManager, RequestKey
from services.generator.scheduler.kv_cache_manager import KVCacheManager
from services.generator.scheduler.logprobs import prompt_logprobs, token_logprob
from services.generator.scheduler.plan_builder import BuiltPlan, PlanBuilder
from shared.errors import InternalError


class Scheduler:
    """Owns all sequences and their queues.

    Args:
        grammars: None where the model cannot follow any.
    """

    def __init__(self, limits: SchedulerLimits, kv_cache: KVCacheManager, grammars: GrammarManager | None) -> None:
        self._limits = limits
        self._kv_cache = kv_cache
        self._grammars = grammars
        self._sequences: dict[RequestKey, Sequence] = {}
        self._preparing: list[Sequence] = []
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self._retiring: list[Sequence] = []
        self._free_rows = list(range(limits.max_num_seqs - 1, -1, -1))
        self._in_flight: deque[BuiltPlan] = deque()
        self._next_step_id = 0
        self._num_preemptions = 0

    @property
    def has_work(self) -> bool:
        """Whether some sequence is not finished, or something planned is not committed."""
        return bool(self._sequences or self._in_flight)

    def submit(self, request: Request) -> FinishReason | None:
        """Queue a request; answers a reason where it can never run, and None where it waits."""
        num_tokens = len(request.prompt_token_ids) + request.sampling.max_tokens
        key = (request.frontend_id, request.request_id)
        is_possible = len(request.prompt_token_ids) > 0 and num_tokens <= self._limits.max_model_len
        if not is_possible or key in self._sequences or not self._kv_cache.can_hold(num_tokens):
            return FinishReason.ERROR
        grammar = request.sampling.grammar
        if grammar is not None and self._grammars is None:
            return FinishReason.ERROR
        sequence = Sequence(request, salt=PrefixSalt(cache_salt=request.cache_salt))
        self._sequences[key] = sequence
        if grammar is not None and self._grammars is not None:
            self._grammars.begin(key, grammar)
            self._preparing.append(sequence)
        else:
            self._waiting.append(sequence)
        return None

    def abort(self, key: RequestKey) -> bool:
        """End a request early; answers whether it was still there."""
        sequence = self._sequences.get(key)
        if sequence is None:
            return False
        self._drop_from_queues(sequence)
        self._finish(sequence)
        return True

    def schedule(self) -> StepPlan | None:
        """The next step, or None where nothing can run before the steps in flight are committed."""
        self._queue_prepared()
        builder = PlanBuilder(self._next_step_id, self._limits.vocab_size)
        budget = self._limits.max_num_batched_tokens
        budget, has_shortage = self._schedule_running(builder, budget)
        if not has_shortage:
            self._admit(builder, budget)
        if builder.is_empty:
            return None
        built = builder.build()
        for sequence in built.sampled:
            sequence.num_pending += 1
        self._in_flight.append(built)
        self._next_step_id += 1
        return built.plan

    def wait(self, timeout_s: float) -> None:
        """Wait until something can run that could not before, where nothing can and nothing is in flight."""
        if self._grammars is not None and self._preparing:
            self._grammars.wait(timeout_s)

    def masks(self, plan: StepPlan) -> IntArray | None:
        """Bit masks [N, ceil(V / 32)] of the ids that the step may sample, or None where all may be.

        Every step before `plan` must be committed where it has rows with grammars: what they allow depends on the tokens so far.
        """
        if self._grammars is None or not plan.features.has_grammars:
            return None
        built = self._in_flight[0]
        if built.plan.step_id != plan.step_id:
            raise InternalError("masks were asked for before earlier steps were committed; this is a bug")
        return self._grammars.masks([_grammar_key(sequence) for sequence in built.sampled])

    def commit(self, plan: StepPlan, result: StepResult) -> list[tuple[str, TokenEvent]]:
        """Record what a step sampled; answers (frontend_id, event) for every sequence that moved.

        Steps are committed in the order in which they were planned.
        """
        built = self._in_flight.popleft()
        if not built.plan.step_id == plan.step_id == result.step_id:
            raise InternalError("steps were committed out of order; this is a bug")
        events = [
            (sequence.request.frontend_id, TokenEvent(sequence.request.request_id, [], prompt_logprobs=logprobs))
            for sequence, logprobs in prompt_logprobs(built.scored, result.prompt_logprobs)
            if sequence.status is not SequenceStatus.FINISHED
        ]
        for index, (sequence, token_id) in enumerate(zip(built.sampled, result.token_ids.tolist(), strict=True)):
            if sequence.status is SequenceStatus.FINISHED:
                continue  # stopped while this step was in flight: its token is the one that is wasted
            logprob = token_logprob(sequence.request.sampling.logprobs, result.logprobs, index)
            event = self._record(sequence, token_id, logprob)
            events.append((sequence.request.frontend_id, event))
        self._release_retired()
        return events

    def stats(self) -> EngineStats:
        """Levels for the metrics."""
        return EngineStats(
            num_running=len(self._running),
            num_waiting=len(self._waiting) + len(self._preparing),
            num_used_blocks=self._kv_cache.num_used_blocks,
            num_preemptions=self._num_preemptions,
            num_prefix_queried_tokens=self._kv_cache.num_queried_tokens,
            num_prefix_hit_tokens=self._kv_cache.num_hit_tokens,
        )

    def reset_prefix_cache(self) -> None:
        """Forget the content of all blocks, for when it may be wrong or must not be found."""
        self._kv_cache.reset_cache()

    def check_integrity(self) -> None:
        """Raise InternalError where the ledgers disagree."""
        holders = {id(s): s for s in [*self._sequences.values(), *self._retiring]}
        self._kv_cache.check_integrity(holders.values())
        rows = [s.row for s in holders.values() if s.row is not None]
        if sorted([*rows, *self._free_rows]) != list(range(self._limits.max_num_seqs)):
            raise InternalError("a row is lost or held twice; this is a bug")
        if len(self._running) + len(self._waiting) + len(self._preparing) != len(self._sequences):
            raise InternalError("a sequence is in no queue or in two; this is a bug")
        if self._grammars is not None:
            self._grammars.check_integrity([key for s in self._sequences.values() if (key := _grammar_key(s))])

    # --- choosing ---

    def _queue_prepared(self) -> None:
        """Let those wait for a row whose grammars are compiled by now."""
        if self._grammars is None or not self._preparing:
            return
        ready = [sequence for sequence in self._preparing if self._grammars.is_ready(sequence.key)]
        self._waiting.extend(ready)
        self._preparing = [sequence for sequence in self._preparing if sequence not in ready]

    def _schedule_running(self, builder: PlanBuilder, budget: int) -> tuple[int, bool]:
        """Plan the running sequences, oldest first; answers the budget left and whether blocks ran short."""
        has_shortage = False
        for sequence in list(self._running):
            if sequence.status is not SequenceStatus.RUNNING:
                continue  # preempted for an older one in this very loop
            length = min(sequence.num_tokens - sequence.num_computed_tokens, budget)
            is_waiting_for_commit = sequence.num_pending > 0 and sequence.has_all_tokens
            if length == 0 or is_waiting_for_commit:
                continue
            num_old_blocks = len(sequence.block_ids)
            if self._grow_or_preempt(sequence, sequence.num_computed_tokens + length):
                self._add(builder, sequence, length, num_old_blocks)
                budget -= length
            else:
                has_shortage = True
        return budget, has_shortage

    def _grow_or_preempt(self, sequence: Sequence, num_tokens: int) -> bool:
        """Get blocks for `sequence`, if need be by preempting younger ones, in the end itself."""
        while not self._kv_cache.grow(sequence, num_tokens):
            soon_free = sum(len(s.block_ids) for s in self._retiring)
            missing = self._kv_cache.num_missing_blocks(sequence, num_tokens)
            if self._kv_cache.num_free_blocks + soon_free >= missing and soon_free > 0:
                return False  # enough comes back with the steps in flight
            victim = next(s for s in reversed(self._running) if s.last_step_id < self._next_step_id)
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _admit(self, builder: PlanBuilder, budget: int) -> None:
        """Plan waiting sequences in order while rows, blocks and budget last."""
        while self._waiting and self._free_rows and budget > 0:
            sequence = self._waiting[0]
            if sequence.row is not None:
                break  # preempted, and its old row and blocks are still read by a step in flight
            self._kv_cache.attach_prefix(sequence)
            length = min(sequence.num_tokens - sequence.num_computed_tokens, budget)
            if not self._kv_cache.grow(sequence, sequence.num_computed_tokens + length):
                self._kv_cache.free(sequence)
                break
            if sequence.num_cached_tokens is None:
                self._kv_cache.count_hits(sequence)
            self._waiting.popleft()
            sequence.row = self._free_rows.pop()
            sequence.status = SequenceStatus.RUNNING
            self._running.append(sequence)
            builder.begin_row(sequence)
            self._add(builder, sequence, length, 0)
            budget -= length

    def _add(self, builder: PlanBuilder, sequence: Sequence, length: int, num_old_blocks: int) -> None:
        """Plan `length` tokens; from here on they count as computed."""
        builder.add(sequence, length, num_old_blocks)
        sequence.last_step_id = self._next_step_id
        sequence.num_computed_tokens += length
        self._kv_cache.publish(sequence)

    def _preempt(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        sequence.status = SequenceStatus.PREEMPTED
        sequence.num_computed_tokens = 0
        self._waiting.appendleft(sequence)
        self._num_preemptions += 1
        self._retire(sequence)

    # --- recording ---

    def _record(self, sequence: Sequence, token_id: int, logprob: TokenLogprob | None) -> TokenEvent:
        """Append a committed token and end the sequence if it was the last."""
        sequence.num_pending -= 1
        if not self._fits_grammar(sequence, token_id):
            self._drop_from_queues(sequence)
            self._finish(sequence)
            return TokenEvent(sequence.request.request_id, [], FinishReason.ERROR)
        sequence.output_token_ids.append(token_id)
        reason = _stop_reason(sequence, token_id)
        if reason is None:
            self._kv_cache.publish(sequence)
        else:
            self._drop_from_queues(sequence)
            self._finish(sequence)
        is_first = len(sequence.output_token_ids) == 1
        return TokenEvent(
            sequence.request.request_id,
            [token_id],
            reason,
            num_cached_tokens=sequence.num_cached_tokens if is_first else None,
            logprobs=None if logprob is None else [logprob],
        )

    def _fits_grammar(self, sequence: Sequence, token_id: int) -> bool:
        key = _grammar_key(sequence)
        return key is None or self._grammars is None or self._grammars.accept(key, token_id)

    def _drop_from_queues(self, sequence: Sequence) -> None:
        if sequence in self._preparing:
            self._preparing.remove(sequence)
        elif sequence.status in (SequenceStatus.WAITING, SequenceStatus.PREEMPTED):
            self._waiting.remove(sequence)

    def _finish(self, sequence: Sequence) -> None:
        if sequence.status is SequenceStatus.RUNNING:
            self._running.remove(sequence)
        sequence.status = SequenceStatus.FINISHED
        del self._sequences[sequence.key]
        if self._grammars is not None:
            self._grammars.end(sequence.key)
        if sequence not in self._retiring:
            self._retire(sequence)

    def _retire(self, sequence: Sequence) -> None:
        """Give back row and blocks, now or when the last plan that uses them is committed."""
        self._retiring.append(sequence)
        self._release_retired()

    def _release_retired(self) -> None:
        oldest_in_flight = self._in_flight[0].plan.step_id if self._in_flight else self._next_step_id
        kept: list[Sequence] = []
        for sequence in self._retiring:
            if sequence.last_step_id >= oldest_in_flight:
                kept.append(sequence)
                continue
            self._kv_cache.free(sequence)
            if sequence.row is not None:
                self._free_rows.append(sequence.row)
                sequence.row = None
        self._retiring = kept


def _grammar_key(sequence: Sequence) -> RequestKey | None:
    """Its key in the ledger of grammars, or None where it has none there."""
    has_grammar = sequence.request.sampling.grammar is not None and sequence.status is not SequenceStatus.FINISHED
    return sequence.key if has_grammar else None


def _stop_reason(sequence: Sequence, token_id: int) -> FinishReason | None:
    if token_id in sequence.request.sampling.stop_token_ids:
        return FinishReason.STOP
    if len(sequence.output_token_ids) >= sequence.request.sampling.max_tokens:
        return FinishReason.LENGTH
    return None


def group_by_frontend(events: Iterable[tuple[str, TokenEvent]]) -> dict[str, list[TokenEvent]]:
    """Events of a step, for one message per API process."""
    groups: dict[str, list[TokenEvent]] = {}
    for frontend_id, event in events:
        groups.setdefault(frontend_id, []).append(event)
    return groups
