"""`POST /v1/embeddings`, as OpenAI's clients send and read it; served by the embedder.

`dimensions` is refused until a model declares shorter vectors.
Token ids are the whole input, as with OpenAI and vLLM: neither special tokens nor a prompt are added to them.
"""

from typing import Annotated, Literal

from shared.contracts.fields import HARMLESS, only
from shared.contracts.wire import ModelName, TokenId, WireModel

MAX_INPUTS = 2048
"""Texts, or lists of token ids, in one request; OpenAI's limit."""

EncodingFormat = Literal["float", "base64"]
EmbeddingInput = str | list[str] | list[TokenId] | list[list[TokenId]]


class EmbeddingRequest(WireModel):
    """Texts or token ids to embed; `null` anywhere but in `input` means the default."""

    model: ModelName | None = None
    input: EmbeddingInput
    encoding_format: EncodingFormat | None = None
    dimensions: Annotated[int | None, only()] = None
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
    """Vectors in the order of the inputs."""

    object: Literal["list"] = "list"
    data: list[EmbeddingItem]
    model: str
    usage: EmbeddingUsage
