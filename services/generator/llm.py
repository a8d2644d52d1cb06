"""The generator in the caller's own process: `LLM(model).generate(prompts, sampling)`, batched by the same engine, without HTTP.

For scripts and notebooks. Requests go the way that a route's go, on an event loop of their own; the engine loop runs on a
second thread, as it does in the engine process.
"""

import asyncio
import json
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

from pydantic import ValidationError

from services.generator.api.answer import WholeChoice, collect
from services.generator.api.chat import start_chat
from services.generator.api.completions import start_completion
from services.generator.api.service import GeneratorService, Started
from services.generator.api.usage import UsageCounter
from services.generator.app import build_service
from services.generator.core.messages import EngineStats
from services.generator.engine.handle import EngineHandle
from services.generator.engine.places import Places
from services.generator.engine.threads import EngineThreads
from services.generator.settings import GeneratorSettings
from shared.contracts.chat import ChatRequest
from shared.contracts.completions import CompletionRequest
from shared.contracts.generation import GenerationFields, Usage
from shared.errors import InvalidRequestError
from shared.http.handlers import invalid_request_from
from shared.settings.errors import StartError

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
        settings: settings of the generator service by name, such as `max_model_len=4096` or `lora=["name=folder"]`; those that
            are left out are read from the environment, as the service does.
    Raises:
        StartError: the model or a setting makes it impossible; the message says which.
    """

    def __init__(self, model: str, **settings: Any) -> None:
        try:
            self._settings = GeneratorSettings(model=model, **settings)
        except ValidationError as error:
            raise StartError(str(error)) from None
        self._handle = EngineHandle(self._settings.max_queued_requests)
        self._service = build_service(self._settings, self._handle)
        self._threads = EngineThreads(self._settings, self._handle)
        self._places = Places(self._handle.max_requests)
        self.close = weakref.finalize(self, self._threads.stop)
        """Stop the engine and free its memory; what still runs in other threads ends with EngineDeadError. Once is enough."""

    def generate(
        self, prompts: str | Sequence[Any], sampling: Sampling | None = None, *, lora: Adapters = None
    ) -> list[Generation]:
        """Continue every prompt, any number of them, batched as the engine can hold them.

        Args:
            prompts: a text, token ids, or a list of either.
            sampling: the same for all prompts.
            lora: name of the adapter for all prompts, or one for each, None for the base model.
        Raises:
            InvalidRequestError: names the field that is wrong; nothing was generated then, or the other prompts are given up.
            EngineDeadError: this was closed, before or meanwhile.
        """
        items = _split(prompts)
        names = _spread(lora, len(items))
        bodies = [
            _read(CompletionRequest, sampling, prompt=item, lora=name) for item, name in zip(items, names, strict=True)
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
        is_one = not _is_list(conversations) or not conversations or isinstance(conversations[0], Mapping)
        several = [conversations] if is_one else conversations
        names = _spread(lora, len(several))
        bodies = [
            _read(ChatRequest, sampling, messages=messages, lora=name)
            for messages, name in zip(several, names, strict=True)
        ]
        return self._threads.run(self._all(start_chat, bodies))

    @property
    def stats(self) -> EngineStats:
        """The engine's levels and counts, as of its last answer."""
        return self._handle.stats

    def num_tokens(self, text: str) -> int:
        """Tokens of `text` as a prompt, special tokens included."""
        return len(self._service.tokenizer.encode(text, add_special_tokens=True))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    async def _all(self, start: Start[Fields], bodies: Sequence[Fields]) -> list[Generation]:
        """Every generation, in order; as many run at once as the engine takes, those of other threads counted."""

        async def one(body: Fields) -> Generation:
            async with self._places.taken(body.n or 1):
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
    if not _is_list(prompts) or (len(prompts) > 0 and isinstance(prompts[0], int)):
        return [prompts]
    for item in prompts:
        if _is_list(item) and len(item) > 0 and not isinstance(item[0], int):
            raise InvalidRequestError("prompt: each must be a text or token ids", param="prompt")
    return list(prompts)


def _spread(lora: Adapters, count: int) -> Sequence[str | None]:
    """An adapter for each of `count` prompts."""
    if lora is None or isinstance(lora, str):
        return [lora] * count
    if len(lora) != count:
        raise InvalidRequestError(f"lora: {len(lora)} adapters for {count} prompts", param="lora")
    return lora


def _is_list(value: object) -> bool:
    return isinstance(value, list | tuple)


def _read(contract: type[Fields], sampling: Sampling | None, **own: Any) -> Fields:
    sampling = {} if sampling is None else sampling
    if not isinstance(sampling, Mapping):
        raise InvalidRequestError("sampling: must be a mapping of fields by name", param="sampling")
    for name in own.keys() & sampling.keys():
        raise InvalidRequestError(f"{name}: is an argument of its own, not one of the sampling fields", param=name)
    try:
        body = contract.model_validate({name: _plain(name, value) for name, value in {**sampling, **own}.items()})
    except ValidationError as error:
        raise invalid_request_from(error.errors(include_input=False, include_url=False)) from None
    if body.stream:
        raise InvalidRequestError("stream: only over HTTP; leave it out", param="stream")
    return body


def _plain(name: str, value: Any) -> Any:
    """`value` as a request over HTTP would bring it, so that what is no text or number there is refused here too."""
    if type(value) is list and set(map(type, value)) == {int}:
        return value  # token ids are that already, and thousands of them
    try:
        return json.loads(json.dumps(value, ensure_ascii=False).encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequestError(f"{name}: cannot be written as JSON: {error}", param=name) from None
