"""`POST /v1/embed` and `/v2/embed`, as Cohere's clients send and read them; served by the embedder.

Texts alone: what this API has beside them (images, other number formats, other lengths of context) is refused by name.
"""

from typing import Annotated, Literal

from pydantic import Field

from shared.contracts.embeddings import EncodingFormat
from shared.contracts.fields import HARMLESS, only
from shared.contracts.rerank import ApiVersion
from shared.contracts.wire import ModelName, WireModel

CohereInputType = Literal["search_document", "search_query", "classification", "clustering"]


class CohereEmbedRequest(WireModel):
    """Texts to embed.

    Attributes:
        input_type: `search_query` and `search_document` choose the model's prompt for queries or for documents; the others none.
        embedding_types: formats of the vectors; without it, `/v1/embed` answers a plain list of them.
        truncate: which end of a text that is too long is dropped; `END` is the default, as with Cohere.
        output_dimension: length of the vectors; shorter than the model's own only where it declares Matryoshka vectors.
    """

    model: ModelName | None = None
    texts: list[str]
    input_type: CohereInputType | None = None
    embedding_types: Annotated[list[EncodingFormat] | None, Field(min_length=1)] = None
    truncate: Literal["NONE", "START", "END"] | None = None
    output_dimension: Annotated[int | None, Field(ge=1, lt=2**31)] = None
    images: Annotated[list[str] | None, only([])] = None
    inputs: Annotated[list[object] | None, only([])] = None
    max_tokens: Annotated[int | None, only()] = None
    priority: Annotated[int | None, HARMLESS] = None


class CohereEmbedMeta(WireModel):
    """The work done.

    Attributes:
        billed_units: tokens that went through the model, special tokens included, as `input_tokens`.
        warnings: which texts were cut; left out where none was.
    """

    api_version: ApiVersion
    billed_units: dict[str, int]
    warnings: list[str] | None = None


class CohereEmbedResponse(WireModel):
    """Vectors in the order of the texts: by format, or on `/v1/embed` without `embedding_types` as a plain list."""

    id: str
    response_type: Literal["embeddings_by_type", "embeddings_floats"]
    embeddings: dict[str, list[list[float]] | list[str]] | list[list[float]]
    texts: list[str]
    meta: CohereEmbedMeta
