"""From an embedding request to token ids, off the event loop; what the model does not support is refused here by name.

Called by the routes. Must not import torch.
"""

from collections.abc import Mapping

from shared.contracts.embeddings import MAX_INPUTS, EmbeddingRequest, InputType
from shared.contracts.wire import one_by_one
from shared.errors import InvalidRequestError
from shared.text.preparer import Prepared, TextPreparer
from shared.text.prompts import InputKind

_KINDS: Mapping[InputType | None, InputKind] = {
    None: "text",
    "query": "query",
    "search_query": "query",
    "document": "document",
    "passage": "document",
    "search_document": "document",
}
_PROMPT_FIELDS = ("prompt_name", "input_type", "instruction")


def prepare_inputs(request: EmbeddingRequest, preparer: TextPreparer) -> Prepared[list[int]]:
    """One sequence for each input.

    Raises:
        InvalidRequestError: a field asks for what is not possible; names it.
    """
    inputs = one_by_one(request.input)
    check_count(len(inputs), param="input")
    texts = [item for item in inputs if isinstance(item, str)]
    if request.dimensions is not None:
        preparer.vectors.check(request.dimensions, param="dimensions")
    prompt = _prompt(request, preparer, has_texts=bool(texts))
    truncate = request.truncate or "none"
    if texts:
        return preparer.from_texts(texts, prompt=prompt, param="input", truncate=truncate)
    sequences = [item for item in inputs if not isinstance(item, str)]
    return preparer.from_token_ids(sequences, param="input", truncate=truncate)


def check_count(num_inputs: int, *, param: str) -> None:
    """Refuse an empty list, and one that is too long for one request."""
    if num_inputs == 0:
        raise InvalidRequestError(f"{param} is an empty list", param=param)
    if num_inputs > MAX_INPUTS:
        raise InvalidRequestError(f"{param} has {num_inputs} entries; the limit is {MAX_INPUTS}", param=param)


def _prompt(request: EmbeddingRequest, preparer: TextPreparer, *, has_texts: bool) -> str:
    given = [name for name in _PROMPT_FIELDS if getattr(request, name) is not None]
    if len(given) > 1:
        raise InvalidRequestError(f"{' and '.join(given)} each choose a prompt; send one of them", param=given[1])
    if given and not has_texts:
        raise InvalidRequestError(f"{given[0]} needs texts; nothing is put before token ids", param=given[0])
    if request.instruction is not None:
        return request.instruction
    if request.prompt_name is not None:
        return preparer.prompts.named(request.prompt_name, param="prompt_name")
    return preparer.prompts.of_kind(_KINDS[request.input_type])
