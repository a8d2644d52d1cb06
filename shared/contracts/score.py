"""`POST /score` and `/classify`, as vLLM's clients send and read them; served by the reranker.

`/score` compares one text with each of several, or each with its own; `/classify` gives the probability of each label.
"""

from typing import Annotated, Literal

from pydantic import Field

from shared.contracts.fields import HARMLESS
from shared.contracts.wire import ModelName, TruncateSide, WireModel

Texts = str | list[str]


class ScoreRequest(WireModel):
    """Pairs to score: `text_1` is one text, which goes with each of `text_2`, or as many as `text_2`.

    Attributes:
        raw_scores: the model's own numbers, without the activation that makes scores of them.
        truncate: which end of a second text that does not fit is dropped; `none`, the default, refuses it.
        instruction: what a judge such as Qwen3-Reranker is told to look for, instead of its own sentence.
    """

    model: ModelName | None = None
    text_1: Texts
    text_2: Texts
    raw_scores: bool | None = None
    truncate: TruncateSide | None = None
    instruction: str | None = None
    user: Annotated[str | None, HARMLESS] = None


class ClassifyRequest(WireModel):
    """Texts to label.

    Attributes:
        raw_scores: the model's own numbers instead of probabilities.
        truncate: which end of a text that does not fit is dropped; `none`, the default, refuses it.
    """

    model: ModelName | None = None
    input: Texts
    raw_scores: bool | None = None
    truncate: TruncateSide | None = None
    user: Annotated[str | None, HARMLESS] = None


class ScoreUsage(WireModel):
    """Tokens that went through the model, special tokens included."""

    prompt_tokens: int
    total_tokens: int


class ScoreItem(WireModel):
    """The score of one pair."""

    index: int
    object: Literal["score"] = "score"
    score: float


class ScoreResponse(WireModel):
    """Scores in the order of the pairs.

    Attributes:
        created: in unix seconds.
        truncated: indexes of the pairs whose second text lost an end; left out where none did.
    """

    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[ScoreItem]
    usage: ScoreUsage
    truncated: list[int] | None = None


class ClassifyItem(WireModel):
    """The probabilities of one text's labels, in the model's order, and the name of the likeliest."""

    index: int
    label: str
    probs: list[float]
    num_classes: Annotated[int, Field(ge=1)]


class ClassifyResponse(WireModel):
    """Labels in the order of the texts.

    Attributes:
        created: in unix seconds.
        truncated: indexes of the texts that lost an end; left out where none did.
    """

    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[ClassifyItem]
    usage: ScoreUsage
    truncated: list[int] | None = None
