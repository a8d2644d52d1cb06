"""The messages of a conversation, past tool calls included, and the fields that go to the model's chat template.

Used by `/v1/chat/completions` and `/tokenize`. What a message says is in `shared.contracts.content`.
"""

import json
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import from_json

from shared.contracts.content import Content, ImagePart
from shared.contracts.fields import only
from shared.contracts.wire import WireModel


def _is_object(text: str) -> str:
    value = from_json(text or "{}", allow_inf_nan=False)
    if not isinstance(value, dict):
        raise ValueError("must be a JSON object written as a string")
    json.dumps(
        value, allow_nan=False
    )  # a number like 1e999 was read as infinity, which no template could write as JSON
    return text


class FunctionCall(WireModel):
    """Which function the assistant called; `arguments` is a JSON object written as a string, or empty for none."""

    name: Annotated[str, Field(min_length=1, max_length=256)]
    arguments: Annotated[str, AfterValidator(_is_object)]


class ToolCall(WireModel):
    """A call that an assistant's message of the past made."""

    id: str
    type: Literal["function"]
    function: FunctionCall


class ChatMessage(WireModel):
    """One turn; a `developer` message is a system message to the template, a `tool` message answers a call.

    Every field that OpenAI's answers have is taken where it is null, so that an answer can be sent back as it came.
    """

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    refusal: Annotated[str | None, only()] = None
    annotations: Annotated[list[Any] | None, only([])] = None
    audio: Annotated[dict[str, Any] | None, only()] = None
    function_call: Annotated[dict[str, Any] | None, only()] = None

    @model_validator(mode="after")
    def _check_role(self) -> Self:
        if self.tool_calls and self.role != "assistant":
            raise ValueError("tool_calls: only an assistant's message may have them")
        if self.content is None and not self.tool_calls:
            raise ValueError("content: must be given; only an assistant's message with tool_calls may go without")
        if self.role != "user" and self.image_parts():
            raise ValueError("content: only a user's message may have images")
        if self.role == "tool" and self.tool_call_id is None:
            raise ValueError("tool_call_id: a tool's message must name the call that it answers")
        if self.role != "tool" and self.tool_call_id is not None:
            raise ValueError("tool_call_id: only a tool's message may have it")
        return self

    def image_parts(self) -> dict[int, ImagePart]:
        """Those parts that are images, by their index in the content."""
        parts = self.content if isinstance(self.content, list) else []
        return {index: part for index, part in enumerate(parts) if isinstance(part, ImagePart)}


class TemplateFields(WireModel):
    """How the conversation becomes text.

    Attributes:
        add_generation_prompt: whether the text ends where an answer begins; true unless the last message is continued.
        continue_final_message: the answer goes on where the last message, an assistant's, ends.
        chat_template_kwargs: variables of the model's own template, such as `enable_thinking`.
    """

    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _check_one_end(self) -> Self:
        if self.add_generation_prompt and self.continue_final_message:
            raise ValueError("continue_final_message: contradicts add_generation_prompt: true")
        return self
