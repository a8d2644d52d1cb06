"""Chooses who runs in the next step, how many tokens of each, and who gives way when blocks run short.

Called by the engine loop: `schedule` makes a plan, `commit` takes its result. Plans may be in flight when the next is made, so
a sequence advances when it is planned and its sampled token is *pending* until the result is committed. Must not import torch.
First come, first served; a preempted sequence goes back to the head of the queue and is computed anew.
"""

from collections import deque
from collections.abc import Iterable

from msgspec.structs import replace

from services.generator.core.block_keys import ImageSpan, PrefixSalt
from services.generator.core.messages import EngineStats, TokenEvent, TokenLogprob
from services.generator.core.plan import IntArray, StepPlan, StepResult
from services.generator.core.request import FinishReason, Request
from services.generator.core.sequence import Sequence, SequenceStatus
from services.generator.core.specs import SchedulerLimits
from services.generator.scheduler.adapter_admission import AdapterAdmission, identify
from services.generator.scheduler.adapter_registry import AdapterRegistry
from services.generator.scheduler.deadlines import Clock, Deadlines, unix_ms
from services.generator.scheduler.encoder_cache_manager import EncoderCacheManager
from services.generator.scheduler.grammars import GrammarManager, RequestKey
from services.generator.scheduler.image_admission import ImageAdmission
from services.generator.scheduler.kv_cache_manager import KVCacheManager
from services.generator.scheduler.logprobs import prompt_logprobs, token_logprob
from services.generator.scheduler.plan_builder import BuiltPlan, PlanBuilder
from services.generator.scheduler.sequence_queues import SequenceQueues, grammar_key
from shared.errors import InternalError


class Scheduler:
    """Decides for the sequences of one engine.

    Args:
        grammars: None where the model cannot follow any.
        adapters: None where there is no bank.
        max_adapter_wait_ms: how long a sequence waits for a slot of the bank before others are preempted for it, which is
            also how long those keep theirs.
        clock: what deadlines and waits are measured with.

    Attributes:
        admission: what adapters mean for those that wait.
    """

    def __init__(
        self,
        limits: SchedulerLimits,
        kv_cache: KVCacheManager,
        grammars: GrammarManager | None = None,
        adapters: AdapterRegistry | None = None,
        *,
        max_adapter_wait_ms: int = 0,
        clock: Clock = unix_ms,
    ) -> None:
        self._limits = limits
        self._kv_cache = kv_cache
        self._grammars = grammars
        self._adapters = adapters or AdapterRegistry(0)
        self._clock = clock
        self._encoder_cache = EncoderCacheManager(0 if limits.images is None else limits.images.num_cached_rows)
        self._images = ImageAdmission(limits.images, self._encoder_cache)
        self._queues = SequenceQueues(
            limits.max_num_seqs, kv_cache, grammars, self._adapters, self._encoder_cache, clock
        )
        self.admission = AdapterAdmission(self._adapters, self._queues, clock, max_adapter_wait_ms)
        self._deadlines = Deadlines(clock)
        self._in_flight: deque[BuiltPlan] = deque()
        self._next_step_id = 0

    @property
    def has_work(self) -> bool:
        """Whether some sequence is not finished, or something planned is not committed."""
        return len(self._queues) > 0 or len(self._in_flight) > 0

    @property
    def now_ms(self) -> int:
        """What deadlines and waits are measured with."""
        return self._clock()

    def submit(self, request: Request) -> FinishReason | None:
        """Queue a request; answers a reason where it can never run, and None where it waits."""
        num_tokens = len(request.prompt_token_ids) + request.sampling.max_tokens
        key = (request.frontend_id, request.request_id)
        is_possible = len(request.prompt_token_ids) > 0 and num_tokens <= self._limits.max_model_len
        is_possible = is_possible and self._kv_cache.can_hold(num_tokens) and self._images.accepts(request)
        if not is_possible or self._queues.find(key) is not None:
            return FinishReason.ERROR
        adapter = None if request.adapter is None else self._adapters.find(request.adapter)
        if adapter is None and request.adapter is not None:
            return FinishReason.NO_ADAPTER
        if request.sampling.grammar is not None and self._grammars is None:
            return FinishReason.ERROR
        if request.images:
            request = replace(request, images=self._encoder_cache.adopt(request.images))
        spans = tuple(ImageSpan(image.position, image.digest) for image in request.images)
        sequence = Sequence(request, adapter=adapter, salt=PrefixSalt(cache_salt=request.cache_salt, images=spans))
        self._images.place(sequence)
        self._queues.accept(sequence)
        self._deadlines.note(request)
        return None

    def abort(self, key: RequestKey) -> bool:
        """End a request early; answers whether it was still there."""
        sequence = self._queues.find(key)
        if sequence is None:
            return False
        self._queues.finish(sequence)
        return True

    def shed(self) -> list[tuple[str, TokenEvent]]:
        """End the requests that were not started before their deadline; answers (frontend_id, event) for each."""
        events = []
        for sequence in self._deadlines.past(self._queues.not_running):
            self._queues.finish(sequence)
            event = TokenEvent(sequence.request.request_id, [], FinishReason.DEADLINE)
            events.append((sequence.request.frontend_id, event))
        return events

    def schedule(self) -> StepPlan | None:
        """The next step, or None where nothing can run before the steps in flight are committed."""
        self._queues.queue_prepared()
        self._images.begin_step()
        builder = PlanBuilder(self._next_step_id, self._limits.vocab_size, has_axes=self._images.has_axes)
        if self._queues.suspects:
            self._schedule_suspect(builder)
        else:
            self.admission.make_room()
            budget = self._limits.max_num_batched_tokens
            budget, has_shortage = self._schedule_running(builder, list(self._queues.running), budget)
            if not has_shortage:
                self._admit(builder, budget)
        if builder.is_empty:
            return None
        built = builder.build(self._adapters.slots.take_copies(), self._images.take_encodes())
        for sequence in built.sampled:
            sequence.num_pending += 1
        self._in_flight.append(built)
        self._next_step_id += 1
        return built.plan

    def wait(self, timeout_s: float) -> None:
        """Wait until something can run that could not before, where nothing can and nothing is in flight."""
        if self._grammars is not None and self._queues.is_preparing:
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
        return self._grammars.masks([grammar_key(sequence) for sequence in built.sampled])

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
            logprob = None if result.logprobs is None else token_logprob(sequence.request, result.logprobs, index)
            event = self._record(sequence, token_id, logprob)
            events.append((sequence.request.frontend_id, event))
        self._release_read(built.plan.step_id + 1)
        return events

    def recover(self) -> list[tuple[str, TokenEvent]]:
        """Take back all plans in flight, one of which failed; answers (frontend_id, event) for who ends by it.

        Nothing is known of what those steps wrote, so neither blocks nor images' rows are trusted any more and everyone is computed
        anew. Who was in those plans runs one at a time until each has sampled a token; one that was alone in them is at fault.
        """
        concerned = list(dict.fromkeys(sequence for built in self._in_flight for sequence in built.sequences))
        for built in self._in_flight:
            for sequence in built.sampled:
                sequence.num_pending = 0
            for sequence, num_scored in built.scored:
                sequence.num_scored_tokens -= num_scored
        self._in_flight.clear()
        self._kv_cache.reset_cache()
        self._release_read(self._next_step_id)
        for sequence in reversed(self._queues.running.copy()):
            self._queues.preempt(sequence)
        self._adapters.forget_slots()
        self._encoder_cache.forget_all()
        self._queues.suspects = deque(s for s in concerned if s.status is not SequenceStatus.FINISHED)
        if len(concerned) > 1 or not self._queues.suspects:
            return []
        (culprit,) = self._queues.suspects
        self._queues.finish(culprit)
        return [(culprit.request.frontend_id, TokenEvent(culprit.request.request_id, [], FinishReason.FAILED))]

    def stats(self) -> EngineStats:
        """Levels for the metrics."""
        return EngineStats(
            num_running=len(self._queues.running),
            num_waiting=len(self._queues.not_running),
            num_used_blocks=self._kv_cache.num_used_blocks,
            num_preemptions=self._queues.num_preemptions,
            num_prefix_queried_tokens=self._kv_cache.num_queried_tokens,
            num_prefix_hit_tokens=self._kv_cache.num_hit_tokens,
            num_encoded_images=self._encoder_cache.num_encoded_images,
            num_encoded_rows=self._encoder_cache.num_encoded_rows,
            num_image_hits=self._encoder_cache.num_hits,
            num_image_rows=self._encoder_cache.num_used_rows,
        )

    def reset_prefix_cache(self) -> None:
        """Forget the content of all blocks, for when it may be wrong or must not be found."""
        self._kv_cache.reset_cache()

    def check_integrity(self) -> None:
        """Raise InternalError where the ledgers disagree."""
        self._queues.check_integrity()

    # --- choosing ---

    def _schedule_suspect(self, builder: PlanBuilder) -> None:
        """Plan the next of the sequences that were in a failed step, alone in its step and in flight."""
        if self._in_flight:
            return
        suspect, budget = self._queues.suspects[0], self._limits.max_num_batched_tokens
        if suspect.status is SequenceStatus.RUNNING:
            self._schedule_running(builder, [suspect], budget)
            return
        while builder.is_empty:
            if self._adapters.can_enter(suspect.adapter):
                self._queues.put_first(suspect)
                self._admit(builder, budget, most=1)
            if builder.is_empty:
                self._queues.preempt(self._queues.running[-1])  # of those that are cleared already and hold the room
                self._images.begin_step()  # where it found no rows before, it may now

    def _schedule_running(self, builder: PlanBuilder, running: list[Sequence], budget: int) -> tuple[int, bool]:
        """Plan running sequences, oldest first; answers the budget left and whether blocks ran short."""
        has_shortage = False
        for sequence in running:
            if sequence.status is not SequenceStatus.RUNNING:
                continue  # preempted for an older one in this very loop
            num_tokens = sequence.num_tokens
            if sequence.num_pending and num_tokens >= sequence.most_tokens:
                continue  # nothing is left to do but to commit
            length = min(num_tokens - sequence.num_computed_tokens, budget)
            if sequence.image_leases:
                length = self._images.fit_running(sequence, length)
            if length == 0:
                continue
            num_old_blocks = len(sequence.block_ids)
            end = sequence.num_computed_tokens + length
            if self._kv_cache.grow(sequence, end) or self._grow_by_preempting(sequence, end):
                self._add(builder, sequence, length, num_old_blocks)
                budget -= length
            else:
                has_shortage = True
        return budget, has_shortage

    def _grow_by_preempting(self, sequence: Sequence, num_tokens: int) -> bool:
        """Get blocks for `sequence` by preempting younger ones, in the end itself."""
        while not self._kv_cache.grow(sequence, num_tokens):
            soon_free = self._queues.num_retiring_blocks
            missing = self._kv_cache.num_missing_blocks(sequence, num_tokens)
            if self._kv_cache.num_free_blocks + soon_free >= missing and soon_free > 0:
                return False  # enough comes back with the steps in flight
            victim = next(s for s in reversed(self._queues.running) if s.last_step_id < self._next_step_id)
            self._queues.preempt(victim)
            if victim is sequence:
                return False
        return True

    def _admit(self, builder: PlanBuilder, budget: int, most: int | None = None) -> None:
        """Plan waiting sequences in order, at most `most`, while rows, blocks and budget last."""
        waiting = self._queues.waiting
        num_passed = 0  # those whose adapter finds no slot, or images no rows, let others go first
        while num_passed < len(waiting) and self._queues.has_free_row and budget > 0 and most != 0:
            sequence = waiting[num_passed]
            if self._images.must_wait(sequence):
                num_passed += 1
                continue
            if not self._adapters.can_enter(sequence.adapter):
                self.admission.pass_over(sequence)
                num_passed += 1
                continue
            most = None if most is None else most - 1
            if sequence.row is not None:
                break  # preempted, and its old row and blocks are still read by a step in flight
            identify(sequence)
            self._kv_cache.attach_prefix(sequence)
            length = min(sequence.num_tokens - sequence.num_computed_tokens, budget)
            length = self._images.fit_waiting(sequence, length)
            if length == 0:
                self._kv_cache.free(sequence)
                num_passed += 1
                continue
            if not self._kv_cache.grow(sequence, sequence.num_computed_tokens + length):
                self._kv_cache.free(sequence)
                break
            if sequence.num_cached_tokens is None:
                self._kv_cache.count_hits(sequence)
            self._queues.start(num_passed)
            builder.begin_row(sequence)
            self._add(builder, sequence, length, 0)
            budget -= length

    def _add(self, builder: PlanBuilder, sequence: Sequence, length: int, num_old_blocks: int) -> None:
        """Plan `length` tokens; from here on they count as computed."""
        builder.add(sequence, length, num_old_blocks)
        if sequence.image_leases:
            self._images.encode_for(sequence, length)
        sequence.last_step_id = self._next_step_id
        if sequence.adapter is not None:
            sequence.adapter.last_step_id = self._next_step_id
        sequence.num_computed_tokens += length
        self._kv_cache.publish(sequence)

    # --- recording ---

    def _release_read(self, oldest_step_id: int) -> None:
        """Every step before `oldest_step_id` is over: what only they read is free."""
        self._queues.release_retired(oldest_step_id)
        self._adapters.settle(oldest_step_id)

    def _record(self, sequence: Sequence, token_id: int, logprob: TokenLogprob | None) -> TokenEvent:
        """Append a committed token and end the sequence if it was the last."""
        sequence.num_pending -= 1
        if sequence.features.has_grammars and not self._fits_grammar(sequence, token_id):
            self._queues.finish(sequence)
            return TokenEvent(sequence.request.request_id, [], FinishReason.ERROR)
        sequence.output_token_ids.append(token_id)
        if self._queues.suspects:
            self._queues.clear_suspicion(sequence)
        reason = _stop_reason(sequence, token_id)
        if reason is None:
            self._kv_cache.publish(sequence)
        else:
            self._queues.finish(sequence)
        num_cached = sequence.num_cached_tokens if len(sequence.output_token_ids) == 1 else None
        logprobs = None if logprob is None else [logprob]
        return TokenEvent(sequence.request.request_id, [token_id], reason, num_cached, logprobs)

    def _fits_grammar(self, sequence: Sequence, token_id: int) -> bool:
        key = grammar_key(sequence)
        return key is None or self._grammars is None or self._grammars.accept(key, token_id)


def _stop_reason(sequence: Sequence, token_id: int) -> FinishReason | None:
    if token_id in sequence.request.sampling.stop_token_ids:
        return FinishReason.STOP
    if sequence.num_known_tokens >= sequence.most_tokens:
        return FinishReason.LENGTH
    return None


def group_by_frontend(events: Iterable[tuple[str, TokenEvent]]) -> dict[str, list[TokenEvent]]:
    """Events of a step, for one message per API process."""
    groups: dict[str, list[TokenEvent]] = {}
    for frontend_id, event in events:
        groups.setdefault(frontend_id, []).append(event)
    return groups
