"""Where the model named by `--model` lies on disk; a hub id is fetched first.

Called by the entry points of the three model services. Knows file names of the Hugging Face layout, nothing of their contents.
"""

import json
from pathlib import Path
from typing import Any

from shared.settings.errors import ModelFolderError

_PATTERNS = ["*.json", "*.safetensors", "*.txt", "*.jinja", "tokenizer.model", "*/*.json", "*/*.safetensors"]


def find_model_folder(model: str) -> Path:
    """The folder of `model`: a path as it is, `org/name` from the hub's local cache or the hub.

    Raises:
        ModelFolderError: neither a folder with a config.json nor a hub id that could be fetched.
    """
    folder = Path(model).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ModelFolderError(f"{model} has no config.json, so it is no Hugging Face model folder")
        return folder
    if model.count("/") != 1 or model.startswith((".", "/", "~")):
        raise ModelFolderError(f"{model} is neither a folder nor a hub id of the form org/name")
    return _fetch(model)


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`.

    Raises:
        ModelFolderError: missing, not JSON, or not an object.
    """
    content = _parse(path)
    if not isinstance(content, dict):
        raise ModelFolderError(f"{path.name} is not a JSON object")
    return content


def read_json_list(path: Path) -> list[dict[str, Any]]:
    """The JSON list of objects in `path`.

    Raises:
        ModelFolderError: missing, not JSON, or not a list of objects.
    """
    content = _parse(path)
    if not isinstance(content, list) or not all(isinstance(item, dict) for item in content):
        raise ModelFolderError(f"{path.name} is not a JSON list of objects")
    return content


def _parse(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelFolderError(f"{path.name} cannot be read: {error}") from error


def _fetch(model: str) -> Path:
    from huggingface_hub import snapshot_download  # only a hub id needs it
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(model, allow_patterns=_PATTERNS))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise ModelFolderError(f"{model} could not be fetched from the hub: {type(error).__name__}") from error
