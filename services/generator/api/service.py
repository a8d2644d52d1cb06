"""What the generator's routes share: the model's card, its tokenizer, the prompt checks and the engine.

Made once by `app.py` and given to each router. Holds references only; the engine handle owns the state.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from services.generator.core.request import SamplingParams
from services.generator.frontend.choices import Choices
from services.generator.frontend.generation import Engine
from services.generator.frontend.model_card import ModelCard
from services.generator.frontend.prompts import PromptPreparer
from services.generator.frontend.sampling import choice_params, stop_strings
from services.generator.metrics import GeneratorMetrics
from shared.contracts.generation import GenerationFields
from shared.errors import InvalidRequestError
from shared.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class GeneratorService:
    """Everything a route needs."""

    card: ModelCard
    tokenizer: Tokenizer
    prompts: PromptPreparer
    engine: Engine
    metrics: GeneratorMetrics

    async def start(self, fields: GenerationFields, prompts: Sequence[list[int]], default: int | None) -> Choices:
        """Start `n` choices for each prompt; all checks are done before any of them runs.

        Args:
            default: output limit where the request has none; None for all that fits.
        """
        check_stream_options(fields)
        work: list[tuple[list[int], SamplingParams]] = []
        for prompt in prompts:
            max_tokens = self.prompts.max_tokens(prompt, fields.output_limit(), default)
            work += [(prompt, params) for params in choice_params(fields, max_tokens, self.card.eos_token_ids)]
        choices = Choices(self.engine, self.tokenizer, work, stop_strings(fields), fields.cache_salt)
        await choices.start()
        self.metrics.prompt_tokens.inc(sum(map(len, prompts)))
        return choices


def check_stream_options(fields: GenerationFields) -> None:
    """`stream_options` without a stream would be accepted and ignored."""
    if fields.stream_options is not None and not fields.stream:
        raise InvalidRequestError("stream_options: only allowed with stream: true", param="stream_options")


def wants_usage(fields: GenerationFields) -> bool:
    """Whether the stream ends with a usage chunk."""
    return bool(fields.stream_options and fields.stream_options.include_usage)
