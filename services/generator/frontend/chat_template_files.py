"""Finds the chat template in a model's folder, in whichever of its files it is.

Called by `app.py` at start. Must not render anything.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2

from services.generator.frontend.chat_template import ChatTemplate
from shared.settings.errors import ModelFolderError
from shared.settings.model_folder import read_json


def load_chat_template(folder: Path) -> ChatTemplate | None:
    """The template in a model's folder, or None where the model has none.

    Raises:
        ModelFolderError: there is one and it is not valid jinja.
    """
    config = _read(folder / "tokenizer_config.json")
    file = folder / "chat_template.jinja"
    source = file.read_text(encoding="utf-8") if file.is_file() else _from_json(folder, config)
    if not isinstance(source, str):
        return None
    names = ("bos_token", "eos_token", "unk_token", "pad_token")
    special_tokens = {name: text for name in names if (text := _token_text(config.get(name))) is not None}
    try:
        return ChatTemplate(source, special_tokens)
    except jinja2.TemplateSyntaxError as error:
        raise ModelFolderError(f"the chat template is not valid: {error}") from error


def _from_json(folder: Path, tokenizer_config: Mapping[str, Any]) -> Any:
    """What a processor's file has, which knows of images, goes before what the tokenizer's has."""
    configs = (_read(folder / "chat_template.json"), _read(folder / "processor_config.json"), tokenizer_config)
    return next((value for config in configs if (value := _default_of(config.get("chat_template"))) is not None), None)


def _read(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _default_of(value: Any) -> Any:
    """The template, or that of several which is named default."""
    if not isinstance(value, list):
        return value
    return next(
        (item.get("template") for item in value if isinstance(item, dict) and item.get("name") == "default"), None
    )


def _token_text(value: Any) -> str | None:
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None
