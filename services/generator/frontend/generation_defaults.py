"""Sampling defaults that come with a model, in its `generation_config.json`: used for what a request leaves out.

Read once at start by `app.py`, best effort: a value that no request could send is left out with a line in the log. `do_sample`
is not looked at, as in vLLM: a request that wants the likeliest token says `temperature: 0`.
"""

from pathlib import Path

from pydantic import ValidationError

from shared.contracts.generation import GenerationFields
from shared.observability.logging import get_logger
from shared.settings.model_folder import read_json

log = get_logger(__name__)

_FIELD_OF = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}
"""Our field for each name in the file."""


def read_generation_defaults(folder: Path) -> GenerationFields:
    """The defaults in a model's folder as the fields of a request; None where the file says nothing.

    Raises:
        ModelFolderError: there is a file and it is no JSON object.
    """
    path = folder / "generation_config.json"
    config = read_json(path) if path.is_file() else {}
    values = {}
    for name, field in _FIELD_OF.items():
        value = config.get(name)
        try:
            GenerationFields.model_validate({field: value})
        except ValidationError:
            log.warning("generation_default_ignored", name=name, value=value)
        else:
            if value is not None:
                values[field] = value
    if values:
        log.info("generation_defaults", **values)
    return GenerationFields.model_validate(values)
