"""From a rerank request to what its scorer wants the model to see, off the event loop.

Called by `api`. Must not import torch.
"""

from services.reranker.scorers import Scorer
from shared.contracts.rerank import RerankRequest
from shared.errors import InvalidRequestError
from shared.text.preparer import Prepared, TextPreparer


def document_texts(request: RerankRequest) -> list[str]:
    """The documents as plain texts, in order."""
    return [document if isinstance(document, str) else document.text for document in request.documents]


def prepare_scoring(
    request: RerankRequest, preparer: TextPreparer, scorer: Scorer, *, max_documents: int
) -> Prepared[list[int]]:
    """The sequences to run.

    Raises:
        InvalidRequestError: there are no documents, too many, or one that cannot be scored; names the field.
    """
    num_documents = len(request.documents)
    if num_documents == 0:
        raise InvalidRequestError("documents is an empty list", param="documents")
    if num_documents > max_documents:
        raise InvalidRequestError(
            f"documents has {num_documents} entries; the limit is {max_documents}", param="documents"
        )
    return scorer.prepare(preparer, request.query, document_texts(request))
