"""`POST /v1/embeddings`, as OpenAI's clients send and read it, and what a search needs beside it; served by the embedder.

Token ids are the whole input, as with OpenAI and vLLM: neither special tokens nor a prompt are added to them.
"""

from typing import Annotated, Literal

from pydantic import Field

from shared.contracts.fields import HARMLESS
from shared.contracts.wire import ModelName, TextsOrIds, TruncateSide, WireModel

MAX_INPUTS = 2048
"""Texts, or lists of token ids, in one request; OpenAI's limit."""

EncodingFormat = Literal["float", "base64"]
InputType = Literal["query", "document", "passage", "search_query", "search_document"]


class EmbeddingRequest(WireModel):
    """Texts or token ids to embed; `null` anywhere but in `input` means the default.

    Attributes:
        dimensions: length of the vectors; shorter than the model's own only where it declares Matryoshka vectors.
        prompt_name: the prompt of the model's folder that goes before each text.
        input_type: chooses the model's prompt for queries or for documents; `search_query` and `passage` are other names.
        instruction: a prompt written out, which goes before each text as it is.
        truncate: which end of an input that is too long is dropped; `none`, the default, refuses such an input.
    """

    model: ModelName | None = None
    input: TextsOrIds
    encoding_format: EncodingFormat | None = None
    dimensions: Annotated[int | None, Field(ge=1, lt=2**31)] = None
    prompt_name: Annotated[str | None, Field(max_length=256)] = None
    input_type: InputType | None = None
    instruction: str | None = None
    truncate: TruncateSide | None = None
    user: Annotated[str | None, HARMLESS] = None


class EmbeddingUsage(WireModel):
    """Tokens that went through the model, special tokens included."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingItem(WireModel):
    """One vector: a list of floats (the default), or base64 of little-endian float32."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingResponse(WireModel):
    """Vectors in the order of the inputs.

    Attributes:
        truncated: indexes of the inputs that lost an end; left out where none did.
    """

    object: Literal["list"] = "list"
    data: list[EmbeddingItem]
    model: str
    usage: EmbeddingUsage
    truncated: list[int] | None = None
