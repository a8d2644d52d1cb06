"""`POST /tokenize` and `POST /detokenize`: the generator's own tokenizer over HTTP.

Exactly one of `prompt` and `messages` is given; messages go through the chat template.
"""

from typing import Self

from pydantic import model_validator

from shared.contracts.chat import ChatMessage
from shared.contracts.wire import ModelName, TokenId, WireModel


class TokenizeRequest(WireModel):
    """Text to token ids."""

    model: ModelName | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None

    @model_validator(mode="after")
    def _check_one_source(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("prompt: exactly one of prompt and messages must be given")
        if self.messages is None and self.add_generation_prompt is not None:
            raise ValueError("add_generation_prompt: goes with messages")
        return self


class TokenizeResponse(WireModel):
    """`max_model_len` in tokens."""

    tokens: list[int]
    count: int
    max_model_len: int


class DetokenizeRequest(WireModel):
    """Token ids to text."""

    model: ModelName | None = None
    tokens: list[TokenId]


class DetokenizeResponse(WireModel):
    """Special tokens are part of the text."""

    prompt: str
