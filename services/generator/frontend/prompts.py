"""Checks and prepares prompts: text or conversation to token ids, and the limits that hold for them.

Called by the API routes before a request is submitted. Tokenizes off the event loop; never talks to the engine.
"""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from services.generator.frontend.chat_template import ChatTemplate
from services.generator.frontend.conversation import template_messages
from services.generator.frontend.model_card import ModelCard
from shared.contracts.completions import Prompt
from shared.contracts.conversation import ChatMessage, TemplateFields
from shared.errors import ContextLengthExceededError, InvalidRequestError
from shared.text.tokenizer import Tokenizer

MAX_PROMPTS = 256
NUM_THREADS = 2
_LONG_TEXT = 2_000
"""Characters from which tokenizing goes to another thread; below, the hand-over costs more than it saves."""


class PromptPreparer:
    """Prepares prompts for one model.

    Args:
        card: limits of the model.
    """

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate | None, card: ModelCard) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._vocab_size = card.vocab_size
        self._max_model_len = card.max_model_len
        self._max_chars = card.max_model_len * tokenizer.max_token_chars
        self._pool = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="tokenize")

    async def from_completion(self, prompt: Prompt) -> list[list[int]]:
        """Token ids of each prompt in `prompt`.

        Raises:
            InvalidRequestError: empty, too many, or ids that are not in the vocabulary.
            ContextLengthExceededError: no room is left for an answer.
        """
        items = _split(prompt)
        if not items:
            raise InvalidRequestError("prompt: must not be empty", param="prompt")
        if len(items) > MAX_PROMPTS:
            raise InvalidRequestError(f"prompt: at most {MAX_PROMPTS} prompts, {len(items)} given", param="prompt")
        return [await self._prepare(item, "prompt", add_special_tokens=True) for item in items]

    async def from_chat(self, messages: Sequence[ChatMessage], fields: TemplateFields) -> list[int]:
        """Token ids of a conversation; the same errors, and that the model has no chat template."""
        return await self._prepare(self.render(messages, fields), "messages", add_special_tokens=False)

    def render(self, messages: Sequence[ChatMessage], fields: TemplateFields) -> str:
        """The conversation as the template writes it."""
        if self._template is None:
            raise InvalidRequestError(
                "messages: this model has no chat template; use /v1/completions", param="messages"
            )
        _refuse_images(messages)
        return self._template.render(
            template_messages(messages, knows_tool_calls=self._template.knows_tool_calls),
            add_generation_prompt=fields.add_generation_prompt is not False,
            continue_final_message=bool(fields.continue_final_message),
            variables=fields.chat_template_kwargs,
        )

    async def tokenize(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of any text, without limits on their number."""
        if len(text) < _LONG_TEXT:
            return self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        encode = partial(self._tokenizer.encode, text, add_special_tokens=add_special_tokens)
        return await asyncio.get_running_loop().run_in_executor(self._pool, encode)

    async def detokenize(self, token_ids: list[int]) -> str:
        """Text of any ids, special tokens included.

        Raises:
            InvalidRequestError: an id is not in the vocabulary.
        """
        self._check_vocabulary(token_ids, "tokens")
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._tokenizer.decode, token_ids)

    def max_tokens(self, prompt: Sequence[int], limit: tuple[str, int | None], default: int | None) -> int:
        """Output limit of one prompt: what was asked, the default, or what is left of the context.

        Args:
            limit: the field that carries the limit, and its value if it was sent.
            default: limit where none was sent; None for all that is left.
        Raises:
            ContextLengthExceededError: prompt and asked output together do not fit.
        """
        left = self._max_model_len - len(prompt)
        param, asked = limit
        if asked is None:
            return left if default is None else min(left, default)
        asked = max(1, asked)  # for 0 the engine makes one token, which is dropped
        if asked > left:
            raise ContextLengthExceededError(
                f"{param}: the context is {self._max_model_len} tokens; the prompt has {len(prompt)} and {asked} more "
                "were asked for",
                param=param,
            )
        return asked

    async def _prepare(self, prompt: str | list[int], param: str, *, add_special_tokens: bool) -> list[int]:
        if isinstance(prompt, str):
            if len(prompt) > self._max_chars:  # cheaper than tokenizing megabytes that cannot fit
                raise self._too_long(f"more than {self._max_model_len}", param)
            prompt = await self.tokenize(prompt, add_special_tokens=add_special_tokens)
        if not prompt:
            raise InvalidRequestError(f"{param}: must not be empty", param=param)
        if len(prompt) >= self._max_model_len:
            raise self._too_long(str(len(prompt)), param)
        self._check_vocabulary(prompt, param)
        return prompt

    def _check_vocabulary(self, token_ids: Sequence[int], param: str) -> None:
        bad = next((token_id for token_id in token_ids if token_id >= self._vocab_size), None)
        if bad is not None:
            raise InvalidRequestError(
                f"{param}: token id {bad} is not in the vocabulary of {self._vocab_size}", param=param
            )

    def _too_long(self, count: str, param: str) -> ContextLengthExceededError:
        return ContextLengthExceededError(
            f"{param}: has {count} tokens; the context is {self._max_model_len} tokens, prompt and answer together",
            param=param,
        )


def _refuse_images(messages: Sequence[ChatMessage]) -> None:
    for index, message in enumerate(messages):
        for part in message.image_parts():
            param = f"messages.{index}.content.{part}"
            raise InvalidRequestError(f"{param}: this model takes no images", param=param)


def _split(prompt: Prompt) -> list[str | list[int]]:
    """One item per prompt; a flat list of ids is one prompt."""
    if isinstance(prompt, str):
        return [prompt]
    if prompt and isinstance(prompt[0], int):
        return [[item for item in prompt if isinstance(item, int)]]
    return [item for item in prompt if not isinstance(item, int)]
