"""The fields that say what form an answer must have: OpenAI's `response_format`, and `structured_outputs` for the other forms.

Used by the contracts of both generating endpoints. Whether a schema or grammar is a good one is the service's check.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from shared.contracts.wire import WireModel

MAX_CHOICES = 1024


class JsonSchema(WireModel):
    """A schema that the answer must fit. It is held to in any case, so `strict` may be true or false; `name` and `description`
    are for the reader."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    description: Annotated[str, Field(max_length=4096)] | None = None
    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    strict: bool | None = None


class ResponseFormat(WireModel):
    """`text` is no restriction; `json_object` is any JSON object."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _check_schema(self) -> Self:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("type json_schema needs json_schema, and no other type takes it")
        return self


class StructuredOutputs(WireModel):
    """Exactly one of: a JSON schema, as an object or as its text; a regular expression that the whole answer matches; a list of
    possible answers; a grammar in Lark's notation."""

    json_: Annotated[dict[str, Any] | str | None, Field(alias="json")] = None
    regex: Annotated[str, Field(min_length=1)] | None = None
    choice: Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1, max_length=MAX_CHOICES)] | None = (
        None
    )
    grammar: Annotated[str, Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if sum(value is not None for value in (self.json_, self.regex, self.choice, self.grammar)) != 1:
            raise ValueError("exactly one of json, regex, choice and grammar")
        return self
