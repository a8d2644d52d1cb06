"""`POST /tokenize` and `POST /detokenize`: the generator's own tokenizer over HTTP.

Exactly one of `prompt` and `messages` is given; messages go through the chat template as `/v1/chat/completions` sends them.
"""

from typing import Annotated, Self

from pydantic import Field, model_validator

from shared.contracts.conversation import ChatMessage, TemplateFields
from shared.contracts.wire import ModelName, TokenId, WireModel


class TokenizeRequest(TemplateFields):
    """Text to token ids.

    Attributes:
        prompt: either this or `messages`.
        add_special_tokens: unless given, true for a prompt and false for messages, whose template writes its own.
    """

    model: ModelName | None = None
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1)] | None = None
    add_special_tokens: bool | None = None

    @model_validator(mode="after")
    def _check_one_source(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("prompt: exactly one of prompt and messages must be given")
        for name in TemplateFields.model_fields:
            if self.messages is None and getattr(self, name) is not None:
                raise ValueError(f"{name}: goes with messages")
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
