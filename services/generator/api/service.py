"""What the generator's routes share: the model's card, its tokenizer, the prompt checks and the engine.

Made once by `app.py` and given to each router. Holds references only; the engine handle owns the state.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from fastapi import Request

from services.generator.core.images import PromptImage, rows_by_digest
from services.generator.core.request import RequestOptions, SamplingParams
from services.generator.frontend.choices import Choices
from services.generator.frontend.generation import Engine, Pieces, TextRules
from services.generator.frontend.model_card import ModelCard
from services.generator.frontend.prompts import PromptPreparer
from services.generator.frontend.sampling import SamplingReader, choices_of, stop_strings
from services.generator.frontend.structured import GrammarReader
from services.generator.metrics import GeneratorMetrics
from shared.contracts.generation import GenerationFields
from shared.contracts.wire import WireModel
from shared.errors import AdapterNotFoundError, ImageInvalidError, InvalidRequestError
from shared.http.body import json_body
from shared.http.disconnect import until_disconnect
from shared.text.tokenizer import Tokenizer

Model = TypeVar("Model", bound=WireModel)


@dataclass(frozen=True, slots=True)
class GeneratorService:
    """Everything a route needs.

    Attributes:
        ignores_unknown_fields: whether fields that no contract declares are dropped instead of refused.
    """

    card: ModelCard
    tokenizer: Tokenizer
    prompts: PromptPreparer
    sampling: SamplingReader
    grammars: GrammarReader
    engine: Engine
    metrics: GeneratorMetrics
    ignores_unknown_fields: bool = False

    def body(self, contract: type[Model]) -> Callable[[Request], Awaitable[Model]]:
        """The dependency that reads a request's body as `contract`."""
        return json_body(contract, ignores_unknown=self.ignores_unknown_fields)

    def check(self, fields: GenerationFields) -> None:
        """What can be refused before any work is done: the model's name, the engine's state, impossible options."""
        self.engine.check_open()
        self.adapter_of(fields)
        check_stream_options(fields)

    def check_name(self, asked: str | None) -> None:
        """Raise ModelNotFoundError unless `asked` is the base model, one of its adapters, or left out."""
        if asked not in self.engine.adapters:
            self.card.check_name(asked)

    def adapter_of(self, fields: GenerationFields) -> str | None:
        """The adapter that a request names, as its `model` or as `lora`; None for the base model.

        Raises:
            ModelNotFoundError, AdapterNotFoundError: there is none of that name.
            InvalidRequestError: the two contradict each other.
        """
        adapters = self.engine.adapters
        if fields.lora is not None and fields.lora not in adapters:
            raise AdapterNotFoundError(f"lora: there is no adapter {fields.lora!r}", param="lora")
        if fields.model is None or fields.model not in adapters:
            self.card.check_name(fields.model)
            return fields.lora
        if fields.lora not in (None, fields.model):
            raise InvalidRequestError(f"lora: {fields.lora!r} is not the model {fields.model!r}", param="lora")
        return fields.model

    async def answer_headers(self, request: Request, choices: Choices) -> dict[str, str]:
        """Which adapter answers, by name and content, for clients that care which version it is; known once it is admitted.

        Raises:
            ServiceError: the request is not admitted.
            ClientDisconnect: the client left before that.
        """
        if choices.adapter is None:
            return {}
        digest = await until_disconnect(request, choices.adapter_digest())
        return {"x-trivium-adapter": f"{choices.adapter}@{digest}"}

    def model_name(self, choices: Choices) -> str:
        """What the answer says it came from."""
        return choices.adapter or self.card.name

    async def start(
        self,
        fields: GenerationFields,
        prompts: Sequence[list[int]],
        default_max_tokens: int | None,
        *,
        deadline_ms: int | None,
        scores_prompt: bool = False,
        images: tuple[PromptImage, ...] = (),
    ) -> Choices:
        """Start `n` choices for each prompt; all checks are done before any of them runs.

        Args:
            default_max_tokens: output limit where the request has none; None for all that fits.
            deadline_ms: unix time in milliseconds after which the client wants no answer.
            scores_prompt: whether log-probabilities of the prompt are wanted too.
            images: of the prompt, which is one then.
        """
        num_choices = len(prompts) * (fields.n or 1)
        if num_choices > self.engine.max_requests:
            raise InvalidRequestError(
                f"n: {num_choices} answers are asked for, at most {self.engine.max_requests} fit here", param="n"
            )
        self._check_rows(images)
        grammar = await self.grammars.read(fields)
        params = self.sampling.read(fields, scores_prompt=scores_prompt, grammar=grammar)
        work: list[tuple[list[int], SamplingParams]] = []
        for prompt in prompts:
            max_tokens = self.prompts.max_tokens(prompt, fields.output_limit(), default_max_tokens)
            work += [(prompt, choice) for choice in choices_of(params, max_tokens, fields.n or 1)]
        rules = self._text_rules(fields)
        is_read_whole = not fields.stream and not rules.stops  # a stop string is looked for with each token
        options = RequestOptions(fields.cache_salt, deadline_ms, self.adapter_of(fields), images, is_read_whole)
        choices = Choices(self.engine, self.tokenizer, work, rules, options)
        choices.start()
        self.metrics.prompt_tokens.inc(sum(map(len, prompts)))
        return choices

    def _check_rows(self, images: Sequence[PromptImage]) -> None:
        """Images that the engine could never hold together would wait for ever."""
        num_rows = sum(rows_by_digest(images).values())
        if num_rows > self.engine.max_image_rows:
            raise ImageInvalidError(
                f"messages: the images have {num_rows} rows; the engine holds {self.engine.max_image_rows} at once "
                "(--encoder-cache-size)",
                param="messages",
            )

    def _text_rules(self, fields: GenerationFields) -> TextRules:
        return TextRules(
            stops=tuple(stop_strings(fields)),
            stop_token_ids=self.sampling.stop_token_ids(fields),
            keeps_stop=bool(fields.include_stop_str_in_output),
            skips_special=fields.skip_special_tokens is not False,
            min_tokens=fields.min_tokens or 0,
        )


class Started(NamedTuple):
    """A request on its way: `choices` must be closed, `pieces` are what its answer is made of."""

    prompts: list[list[int]]
    choices: Choices
    pieces: Pieces


def check_stream_options(fields: GenerationFields) -> None:
    """`stream_options` without a stream would be accepted and ignored."""
    if fields.stream_options is not None and not fields.stream:
        raise InvalidRequestError("stream_options: only allowed with stream: true", param="stream_options")


def wants_usage(fields: GenerationFields) -> bool:
    """Whether the stream ends with a usage chunk."""
    return bool(fields.stream_options and fields.stream_options.include_usage)
