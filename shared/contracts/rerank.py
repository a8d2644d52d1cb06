"""`POST /rerank`, `/v1/rerank` and `/v2/rerank`: what Cohere's, Jina's, vLLM's and TEI's clients send, and what each reads.

Documents are texts or `{"text": …}`; an empty one is refused, and so is an empty query. A `top_n` over the number of documents
answers all of them. A request with `texts` is TEI's and gets its bare array, on every path.
"""

from typing import Annotated, Literal

from pydantic import Field

from shared.contracts.fields import HARMLESS
from shared.contracts.wire import ModelName, TruncateSide, WireModel

DOCUMENTS_PER_SEARCH_UNIT = 100
"""Cohere's unit of billing, which its clients read."""


class RerankDocument(WireModel):
    """A document given, or given back, as an object."""

    text: str


class RerankRequest(WireModel):
    """One query and the documents to order by relevance to it; at most `top_n` are answered.

    Attributes:
        return_documents: whether each result carries its document.
        raw_scores: the model's own numbers, without the activation that makes scores of them.
        max_tokens_per_doc: longer documents are cut to it, and to what fits; special tokens and the query do not count.
        truncate: which end of a document that does not fit is dropped; `none`, the default, refuses it.
        instruction: what a judge such as Qwen3-Reranker is told to look for, instead of its own sentence.
    """

    model: ModelName | None = None
    query: str
    documents: list[str | RerankDocument]
    top_n: Annotated[int, Field(ge=1)] | None = None
    return_documents: bool | None = None
    raw_scores: bool | None = None
    max_tokens_per_doc: Annotated[int, Field(ge=1)] | None = None
    truncate: TruncateSide | None = None
    instruction: str | None = None
    user: Annotated[str | None, HARMLESS] = None


class TeiRerankRequest(WireModel):
    """The same in the words of text-embeddings-inference, told by `texts`.

    Attributes:
        texts: what others call documents; its presence makes the request TEI's.
        return_text: whether each result carries its text.
        truncate: a text that does not fit is cut instead of refused.
        truncation_direction: which end goes: `right`, the default, is its end.
    """

    model: ModelName | None = None
    query: str
    texts: list[str]
    raw_scores: bool | None = None
    return_text: bool | None = None
    truncate: bool | None = None
    truncation_direction: Literal["left", "right", "Left", "Right"] | None = None


class RerankResult(WireModel):
    """`index` is the document's place in the request; `document` is left out unless the request asks for it."""

    index: int
    relevance_score: float
    document: RerankDocument | None = None


class TeiRerankResult(WireModel):
    """An entry of TEI's array, sorted by falling score; `text` is left out unless the request asks for it."""

    index: int
    score: float
    text: str | None = None


class RerankUsage(WireModel):
    """Tokens that went through the model, special tokens included."""

    prompt_tokens: int
    total_tokens: int


class ApiVersion(WireModel):
    """Version that Cohere's clients look for."""

    version: str


class RerankMeta(WireModel):
    """The part of the answer that Cohere's clients read.

    Attributes:
        warnings: what was cut; left out where nothing was.
    """

    api_version: ApiVersion
    billed_units: dict[str, int]
    warnings: list[str] | None = None


class RerankResponse(WireModel):
    """Results sorted by falling score, ties by index: the superset that clients of Cohere v1, Jina and vLLM read."""

    id: str
    object: Literal["list"] = "list"
    model: str
    results: list[RerankResult]
    usage: RerankUsage
    meta: RerankMeta


class CohereRerankResponse(WireModel):
    """The same as Cohere's v2 API has it, without model and usage."""

    id: str
    results: list[RerankResult]
    meta: RerankMeta
