"""An engine for API tests that says what it is told to say, token by token, and remembers what was asked of it."""

import asyncio
from collections.abc import Callable, Sequence

from services.generator.core.adapters import AdapterState
from services.generator.core.images import PromptImage
from services.generator.core.messages import TokenEvent, TokenLogprob
from services.generator.core.request import Choice, FinishReason, RequestOptions, SamplingParams


class ScriptedStream:
    """Events of one request: `script` gives the tokens, then the reason; an exception in it is raised."""

    def __init__(self, engine: "FakeEngine", request_id: int, script: list) -> None:
        self._engine = engine
        self._request_id = request_id
        self._script = script

    def __aiter__(self):
        return self._events()

    async def _events(self):
        for step in self._script:
            await asyncio.sleep(0)
            if isinstance(step, BaseException):
                raise step
            if isinstance(step, asyncio.Event):
                await step.wait()
            elif isinstance(step, FinishReason):
                self._engine.ended.add(self._request_id)
                yield TokenEvent(self._request_id, [], step)
            else:
                yield self._token_event(step)

    def _token_event(self, step) -> TokenEvent:
        """A step is a list of ids, or (list, log-probability of its one id)."""
        ids, logprob = step if isinstance(step, tuple) else (step, None)
        prompt_logprobs, self._engine.prompt_logprobs = self._engine.prompt_logprobs, None
        return TokenEvent(
            self._request_id,
            list(ids),
            None,
            self._engine.num_cached_tokens,
            logprobs=None if logprob is None else [logprob],
            prompt_logprobs=prompt_logprobs,
        )

    async def aclose(self) -> None:
        if self._request_id not in self._engine.ended:
            self._engine.aborted.append(self._request_id)
            self._engine.ended.add(self._request_id)


class FakeEngine:
    """`answer` maps (prompt, sampling) to a script; `submitted` holds what was asked."""

    def __init__(self, answer: Callable[[list[int], SamplingParams], list]) -> None:
        self._answer = answer
        self.submitted: list[tuple[list[int], SamplingParams]] = []
        self.closed: Exception | None = None
        self.adapters: dict[str, AdapterState] = {}
        self.used_adapters: list[str | None] = []
        self.salts: list[str | None] = []
        self.deadlines: list[int | None] = []
        self.max_requests = 512
        self.max_image_rows = 0
        self.images: list[tuple[PromptImage, ...]] = []
        self.num_cached_tokens = 0
        self.prompt_logprobs: list[TokenLogprob] | None = None
        self.aborted: list[int] = []
        self.ended: set[int] = set()
        self.refuse_after: int | None = None
        self.refusal: Exception | None = None

    def check_open(self) -> None:
        """Raises `closed` where that is set; other refusals come from `submit`."""
        if self.closed is not None:
            raise self.closed

    def submit(self, choices: Sequence[Choice], options: RequestOptions) -> list[ScriptedStream]:
        if self.refusal is not None and len(self.submitted) + len(choices) > (self.refuse_after or 0):
            raise self.refusal
        return [self._submit(prompt, sampling, options) for prompt, sampling in choices]

    def _submit(self, prompt: list[int], sampling: SamplingParams, options: RequestOptions) -> ScriptedStream:
        self.submitted.append((prompt, sampling))
        self.salts.append(options.cache_salt)
        self.deadlines.append(options.deadline_ms)
        self.used_adapters.append(options.adapter)
        self.images.append(options.images)
        return ScriptedStream(self, len(self.submitted) - 1, self._answer(prompt, sampling))
