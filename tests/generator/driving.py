"""Drives scheduler and runner of a real model in this process, without transport, for tests of numbers."""

from collections.abc import Callable, Sequence

from services.generator.core.images import PromptImage
from services.generator.core.messages import EngineStats, TokenLogprob
from services.generator.core.plan import StepPlan
from services.generator.core.request import Request, SamplingParams
from services.generator.engine.build import BuiltModel


class OfflineEngine:
    """Steps a built model until all prompts are answered; `before_step` sees every plan first."""

    def __init__(self, built: BuiltModel) -> None:
        self._built = built
        self._next_id = 0
        self.logprobs: dict[int, list[TokenLogprob]] = {}
        self.prompt_logprobs: dict[int, list[TokenLogprob]] = {}
        self.before_step: Callable[[StepPlan], None] = lambda plan: None

    def stats(self) -> EngineStats:
        """The scheduler's levels and counts."""
        return self._built.scheduler.stats()

    def generate(
        self,
        prompts: Sequence[list[int]],
        *,
        each: Sequence[SamplingParams] | None = None,
        adapters: Sequence[str | None] | None = None,
        images: Sequence[tuple[PromptImage, ...]] | None = None,
        **sampling,
    ) -> list[list[int]]:
        """Outputs of `prompts`, all submitted at once; greedy unless `temperature` is given.

        Args:
            each: the parameters of each prompt, instead of `sampling` for all.
            adapters: the adapter of each prompt; the base model for all unless given.
            images: of each prompt; none unless given.
        """
        params = None if each else SamplingParams(**{"temperature": 0.0, **sampling})
        outputs: dict[int, list[int]] = {}
        self.logprobs, self.prompt_logprobs = {}, {}
        first_id = self._next_id
        for prompt in prompts:
            index = len(outputs)
            adapter = None if adapters is None else adapters[index]
            request = Request(
                "test",
                self._next_id,
                prompt,
                params if each is None else each[index],
                adapter=adapter,
                images=() if images is None else images[index],
            )
            assert self._built.scheduler.submit(request) is None
            outputs[self._next_id] = []
            self._next_id += 1
        while self._built.scheduler.has_work:
            plan = self._built.scheduler.schedule()
            if plan is None:
                self._built.scheduler.wait(1)
                continue
            self.before_step(plan)
            step = self._built.runner.execute(plan)
            result = self._built.runner.sample(step, self._built.scheduler.masks(plan)).result()
            for _, event in self._built.scheduler.commit(plan, result):
                outputs[event.request_id] += event.token_ids
                index = event.request_id - first_id
                self.logprobs.setdefault(index, []).extend(event.logprobs or [])
                self.prompt_logprobs.setdefault(index, []).extend(event.prompt_logprobs or [])
            self._built.scheduler.check_integrity()
        return list(outputs.values())
