"""From an embedding request to token ids, off the event loop; what the model does not support is refused here by name.

Called by `api`. Must not import torch.
"""

from shared.contracts.embeddings import MAX_INPUTS, EmbeddingRequest
from shared.errors import InvalidRequestError
from shared.text.preparer import TextPreparer


def prepare_inputs(request: EmbeddingRequest, preparer: TextPreparer) -> list[list[int]]:
    """One sequence for each input.

    Raises:
        InvalidRequestError: a field asks for what is not possible; names it.
    """
    texts, sequences = _split(request)
    num_inputs = len(texts) + len(sequences)
    if num_inputs == 0:
        raise InvalidRequestError("input is an empty list", param="input")
    if num_inputs > MAX_INPUTS:
        raise InvalidRequestError(f"input has {num_inputs} entries; the limit is {MAX_INPUTS}", param="input")
    if texts:
        return preparer.from_texts(texts, kind="text", param="input")
    return preparer.from_token_ids(sequences, param="input")


def _split(request: EmbeddingRequest) -> tuple[list[str], list[list[int]]]:
    """The inputs as a list, of texts or of token ids; the other list is empty."""
    texts: list[str] = []
    token_ids: list[int] = []
    sequences: list[list[int]] = []
    for item in [request.input] if isinstance(request.input, str) else request.input:
        if isinstance(item, str):
            texts.append(item)
        elif isinstance(item, int):
            token_ids.append(item)
        else:
            sequences.append(item)
    return texts, [token_ids] if token_ids else sequences
