"""The generator in the caller's own process: `LLM(model).generate(prompts, sampling)`, batched by the same engine, without HTTP.

For scripts and notebooks. Requests go the way that a route's go, on an event loop of their own; the engine loop runs on a
second thread, as it does in the engine process.
"""

import asyncio
import tempfile
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from pydantic import ValidationError

from services.generator.api.answer import WholeChoice, collect
from services.generator.api.chat import start_chat
from services.generator.api.completions import start_completion
from services.generator.api.service import GeneratorService, Started
from services.generator.api.usage import UsageCounter
from services.generator.app import build_service
from services.generator.engine.handle import EngineHandle, EngineState
from services.generator.settings import GeneratorSettings
from shared.contracts.chat import ChatRequest
from shared.contracts.completions import CompletionRequest
from shared.contracts.generation import GenerationFields, Usage
from shared.errors import EngineDeadError, InvalidRequestError
from shared.http.handlers import invalid_request_from
from shared.settings.errors import StartError
from shared.settings.threads import set_thread_environment

Result = TypeVar("Result")
Fields = TypeVar("Fields", bound=GenerationFields)
Start = Callable[[GeneratorService, Fields, int | None], Awaitable[Started]]
Sampling = Mapping[str, Any]
"""Fields of `/v1/completions` or `/v1/chat/completions` by name, such as `{"max_tokens": 64, "temperature": 0}`."""
Message = Mapping[str, Any]
Adapters = str | Sequence[str | None] | None


@dataclass(frozen=True, slots=True)
class Generation:
    """The answers to one prompt.

    Attributes:
        choices: `n` of them, each with its text, token ids, log-probabilities where asked for, and why it ended.
    """

    prompt_token_ids: list[int]
    choices: list[WholeChoice]
    usage: Usage

    @property
    def text(self) -> str:
        """Text of the first choice."""
        return self.choices[0].text


class LLM:
    """One model, loaded; a context manager, or closed by `close` and at the end of the program.

    Args:
        model: folder of a Hugging Face model, or a hub id.
        settings: settings of the generator service by name, such as `max_model_len=4096` or `lora=["name=folder"]`.
    Raises:
        StartError: the model or a setting makes it impossible; the message says which.
    """

    def __init__(self, model: str, **settings: Any) -> None:
        try:
            self._settings = GeneratorSettings(model=model, **settings)
        except ValidationError as error:
            raise StartError(str(error)) from None
        self._handle = EngineHandle(self._settings.max_requests)
        self._service = build_service(self._settings, self._handle)
        self._threads = _Threads(self._settings, self._handle)
        self.close = weakref.finalize(self, self._threads.stop)
        """Stop the engine and free its memory; further calls do nothing."""

    def generate(
        self, prompts: str | Sequence[Any], sampling: Sampling | None = None, *, lora: Adapters = None
    ) -> list[Generation]:
        """Continue every prompt, any number of them, batched as the engine can hold them.

        Args:
            prompts: a text, token ids, or a list of either.
            sampling: the same for all prompts.
            lora: name of the adapter for all prompts, or one for each, None for the base model.
        Raises:
            ValueError: there are not as many adapters as prompts.
            InvalidRequestError: names the field that is wrong; nothing was generated then, or the other prompts are given up.
        """
        items = _split(prompts)
        if any(not isinstance(item, str) and any(not isinstance(part, int) for part in item) for item in items):
            raise InvalidRequestError("prompt: each is a text or a list of token ids", param="prompt")
        bodies = [
            _read(CompletionRequest, sampling, prompt=prompt, lora=name)
            for prompt, name in zip(items, _spread(lora, len(items)), strict=True)
        ]
        return self._threads.run(self._all(start_completion, bodies))

    def chat(
        self,
        conversations: Sequence[Message] | Sequence[Sequence[Message]],
        sampling: Sampling | None = None,
        *,
        lora: Adapters = None,
    ) -> list[Generation]:
        """Answer a conversation, or each of several; the same errors."""
        is_one = len(conversations) > 0 and isinstance(conversations[0], Mapping)
        several = [conversations] if is_one else conversations
        bodies = [
            _read(ChatRequest, sampling, messages=messages, lora=name)
            for messages, name in zip(several, _spread(lora, len(several)), strict=True)
        ]
        return self._threads.run(self._all(start_chat, bodies))

    def num_tokens(self, text: str) -> int:
        """Tokens of `text` as a prompt, special tokens included."""
        return len(self._service.tokenizer.encode(text, add_special_tokens=True))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    async def _all(self, start: Start[Fields], bodies: Sequence[Fields]) -> list[Generation]:
        """Every generation, in order; as many run at once as the engine takes."""
        num_choices = max((body.n or 1 for body in bodies), default=1)
        places = asyncio.Semaphore(max(1, self._settings.max_requests // num_choices))

        async def one(body: Fields) -> Generation:
            async with places:
                prompts, choices, pieces = await start(self._service, body, None)
                usage = UsageCounter(prompts, body.n or 1, self._service.metrics)
                async with aclosing(choices):
                    return Generation(prompts[0], await collect(pieces, choices.num_choices, usage), usage.total())

        tasks = [asyncio.create_task(one(body)) for body in bodies]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def _split(prompts: str | Sequence[Any]) -> list[Any]:
    """One item per prompt; a flat list of ids is one prompt."""
    if isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], int)):
        return [prompts]
    return list(prompts)


def _spread(lora: Adapters, count: int) -> Sequence[str | None]:
    """An adapter for each of `count` prompts."""
    if lora is None or isinstance(lora, str):
        return [lora] * count
    if len(lora) != count:
        raise ValueError(f"lora: {len(lora)} adapters for {count} prompts")
    return lora


def _read(contract: type[Fields], sampling: Sampling | None, **own: Any) -> Fields:
    sampling = sampling or {}
    for name in own:
        if name in sampling:
            raise InvalidRequestError(f"{name}: is an argument of its own, not a part of sampling", param=name)
    try:
        body = contract.model_validate({**sampling, **own})
    except ValidationError as error:
        raise invalid_request_from(error.errors(include_input=False, include_url=False)) from None
    if body.stream:
        raise InvalidRequestError("stream: only over HTTP; leave it out", param="stream")
    return body


class _Threads:
    """The event loop and the engine loop; the engine has started when this is made."""

    def __init__(self, settings: GeneratorSettings, handle: EngineHandle) -> None:
        self._settings = settings
        self._handle = handle
        self._sockets = tempfile.TemporaryDirectory(prefix="trivium-")
        self._address = f"ipc://{Path(self._sockets.name) / 'engine.sock'}"
        self._loop = asyncio.new_event_loop()
        self._engine_ended = asyncio.Event()
        self._error: BaseException | None = None
        self._threads = [
            threading.Thread(target=self._loop.run_forever, name="llm-requests", daemon=True),
            threading.Thread(target=self._run_engine, name="llm-engine", daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        self.run(self._connect())
        if self._handle.state is not EngineState.READY:
            self.stop()
            raise StartError("the engine did not start") if self._error is None else self._error

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run `work` on the event loop and wait for its result."""
        if self._loop.is_closed():
            work.close()
            raise EngineDeadError("The engine was closed")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def stop(self) -> None:
        """End both threads."""
        self.run(self._disconnect())
        self._threads[1].join()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._threads[0].join()
        self._loop.close()
        self._sockets.cleanup()

    async def _connect(self) -> None:
        self._events = asyncio.create_task(self._handle.run(self._address), name="llm-events")
        ends = [asyncio.create_task(event.wait()) for event in (self._handle.is_ready, self._engine_ended)]
        await asyncio.wait([*ends, self._events], return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()

    async def _disconnect(self) -> None:
        self._handle.shutdown()
        await self._engine_ended.wait()
        self._events.cancel()
        await asyncio.gather(self._events, return_exceptions=True)

    def _run_engine(self) -> None:
        """Thread of the engine; what ends it early is raised to whoever waits."""
        try:
            num_threads = set_thread_environment(self._settings.num_threads)
            from services.generator.engine.build import build_engine  # loads torch, which reads that environment

            build_engine(self._settings, num_threads, address=self._address).run()
        except Exception as error:  # noqa: BLE001 - the top of a thread: its waiters are told
            self._error = error
        self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        self._engine_ended.set()
        if self._error is not None:
            self._handle.lose_engine(EngineState.DEAD)
