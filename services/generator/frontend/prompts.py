"""Checks and prepares prompts: text or conversation to token ids, and the limits that hold for them.

Called by the API routes before a request is submitted. Tokenizes off the event loop; never talks to the engine.
"""

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from services.generator.frontend.chat_template import ChatTemplate
from services.generator.frontend.conversation import image_urls, template_messages
from services.generator.frontend.model_card import ModelCard
from services.generator.images.placeholders import ImagePrompt, expand
from services.generator.images.preparer import ImagePreparer
from shared.contracts.conversation import ChatMessage, TemplateFields
from shared.contracts.wire import TextsOrIds, one_by_one
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
        images: None where the model takes none.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        card: ModelCard,
        images: ImagePreparer | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._images = images
        self._vocab_size = card.vocab_size
        self._max_model_len = card.max_model_len
        self._max_chars = card.max_model_len * tokenizer.max_token_chars
        self._pool = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="tokenize")

    async def from_completion(self, prompt: TextsOrIds) -> list[list[int]]:
        """Token ids of each prompt in `prompt`.

        Raises:
            InvalidRequestError: empty, too many, or ids that are not in the vocabulary.
            ContextLengthExceededError: no room is left for an answer.
        """
        items = one_by_one(prompt)
        if not items:
            raise InvalidRequestError("prompt: must not be empty", param="prompt")
        if len(items) > MAX_PROMPTS:
            raise InvalidRequestError(f"prompt: at most {MAX_PROMPTS} prompts, {len(items)} given", param="prompt")
        return [await self._from_item(item) for item in items]

    async def from_chat(self, messages: Sequence[ChatMessage], fields: TemplateFields) -> ImagePrompt:
        """A conversation with its images; the same errors, and that the model has no chat template.

        Raises:
            ImageInvalidError: an image cannot be read, or is beyond the limits.
        """
        urls = self._image_urls(messages)
        token_ids = await self._encode(self._render(messages, fields), "messages", add_special_tokens=False)
        prompt = await self._with_images(token_ids, urls)
        self._check(prompt.token_ids, "messages", num_rows=prompt.num_rows)
        return prompt

    async def tokenize_chat(
        self, messages: Sequence[ChatMessage], fields: TemplateFields, *, add_special_tokens: bool
    ) -> list[int]:
        """Token ids of a conversation, room for its images included, without limits on their number."""
        urls = self._image_urls(messages)
        token_ids = await self.tokenize(self._render(messages, fields), add_special_tokens=add_special_tokens)
        return (await self._with_images(token_ids, urls)).token_ids

    def _image_urls(self, messages: Sequence[ChatMessage]) -> dict[str, str]:
        urls = image_urls(messages)
        if urls and self._images is None:
            param = next(iter(urls))
            raise InvalidRequestError(f"{param}: this model takes no images", param=param)
        if self._images is not None:
            self._images.check_count(len(urls))
        return urls

    async def _with_images(self, token_ids: list[int], urls: Mapping[str, str]) -> ImagePrompt:
        if self._images is None:
            return ImagePrompt(token_ids)
        self._images.check_placeholders(token_ids, "messages", len(urls))
        return expand(token_ids, await self._images.prepare(urls), self._images.image_token_id)

    def _render(self, messages: Sequence[ChatMessage], fields: TemplateFields) -> str:
        template = self._template
        if template is None:
            raise InvalidRequestError(
                "messages: this model has no chat template; use /v1/completions", param="messages"
            )
        return template.render(
            template_messages(
                messages, knows_tool_calls=template.knows_tool_calls, reads_strings=template.reads_strings
            ),
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

    async def _from_item(self, item: str | list[int]) -> list[int]:
        token_ids = await self._encode(item, "prompt", add_special_tokens=True) if isinstance(item, str) else item
        if self._images is not None:
            self._images.check_placeholders(token_ids, "prompt", 0)
        self._check(token_ids, "prompt")
        return token_ids

    async def _encode(self, text: str, param: str, *, add_special_tokens: bool) -> list[int]:
        if len(text) > self._max_chars:  # cheaper than tokenizing megabytes that cannot fit
            raise self._too_long(f"more than {self._max_model_len}", param)
        return await self.tokenize(text, add_special_tokens=add_special_tokens)

    def _check(self, token_ids: Sequence[int], param: str, num_rows: int = 0) -> None:
        if not token_ids:
            raise InvalidRequestError(f"{param}: must not be empty", param=param)
        if len(token_ids) >= self._max_model_len:
            raise self._too_long(str(len(token_ids)), param, num_rows)
        self._check_vocabulary(token_ids, param)

    def _check_vocabulary(self, token_ids: Sequence[int], param: str) -> None:
        if max(token_ids, default=0) >= self._vocab_size:
            bad = next(token_id for token_id in token_ids if token_id >= self._vocab_size)
            raise InvalidRequestError(
                f"{param}: token id {bad} is not in the vocabulary of {self._vocab_size}", param=param
            )

    def _too_long(self, count: str, param: str, num_rows: int = 0) -> ContextLengthExceededError:
        images = f", {num_rows} of them for images" if num_rows else ""
        return ContextLengthExceededError(
            f"{param}: has {count} tokens{images}; the context is {self._max_model_len} tokens, prompt and answer together",
            param=param,
        )
