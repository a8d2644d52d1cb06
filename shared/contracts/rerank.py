"""`POST /rerank`, `/v1/rerank` and `/v2/rerank`: one request shape and the superset of what Jina and Cohere clients read.

Documents are texts or `{"text": …}`; an empty one is refused, and so is an empty query. A `top_n` over the number of documents
answers all of them.
"""

from typing import Annotated, Literal

from pydantic import Field

from shared.contracts.fields import HARMLESS
from shared.contracts.wire import ModelName, WireModel

DOCUMENTS_PER_SEARCH_UNIT = 100
"""Cohere's unit of billing, which its clients read."""


class RerankDocument(WireModel):
    """A document given, or given back, as an object."""

    text: str


class RerankRequest(WireModel):
    """One query and the documents to order by relevance to it; at most `top_n` are answered."""

    model: ModelName | None = None
    query: str
    documents: list[str | RerankDocument]
    top_n: Annotated[int, Field(ge=1)] | None = None
    return_documents: bool | None = None
    user: Annotated[str | None, HARMLESS] = None


class RerankResult(WireModel):
    """`index` is the document's place in the request; `document` is left out unless the request asks for it."""

    index: int
    relevance_score: float
    document: RerankDocument | None = None


class RerankUsage(WireModel):
    """Tokens that went through the model, special tokens included."""

    prompt_tokens: int
    total_tokens: int


class ApiVersion(WireModel):
    """Version that Cohere's clients look for."""

    version: str


API_VERSION = ApiVersion(version="2")


class RerankMeta(WireModel):
    """The part of the answer that Cohere's clients read."""

    api_version: ApiVersion
    billed_units: dict[str, int]


class RerankResponse(WireModel):
    """Results sorted by falling score, ties by index."""

    id: str
    object: Literal["list"] = "list"
    model: str
    results: list[RerankResult]
    usage: RerankUsage
    meta: RerankMeta
