"""Turns a conversation into the prompt that the model was trained on, by the jinja template of its folder.

Called for chat requests. Templates come with models and are not trusted: they run in jinja's immutable sandbox.
"""

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from shared.errors import InvalidRequestError
from shared.settings.errors import ModelFolderError
from shared.settings.model_folder import read_json


class ChatTemplate:
    """The chat template of one model.

    Args:
        source: jinja text as in `tokenizer_config.json`.
        special_tokens: the texts that templates refer to by name, such as `bos_token`.
    """

    def __init__(self, source: str, special_tokens: dict[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        self._template = environment.from_string(source)
        self._special_tokens = special_tokens

    def render(self, messages: Sequence[dict[str, str]], *, add_generation_prompt: bool = True) -> str:
        """The prompt text for `messages`, each with role and content.

        Raises:
            InvalidRequestError: the template refuses this conversation.
        """
        try:
            return self._template.render(
                messages=list(messages), add_generation_prompt=add_generation_prompt, **self._special_tokens
            )
        except jinja2.TemplateError as error:
            raise InvalidRequestError(f"messages: the chat template refuses them: {error}", param="messages") from None


def load_chat_template(folder: Path) -> ChatTemplate | None:
    """The template in a model's folder, or None where the model has none.

    Raises:
        ModelFolderError: there is one and it is not valid jinja.
    """
    path = folder / "tokenizer_config.json"
    config = read_json(path) if path.is_file() else {}
    file = folder / "chat_template.jinja"
    source = file.read_text(encoding="utf-8") if file.is_file() else config.get("chat_template")
    if not isinstance(source, str):
        return None
    names = ("bos_token", "eos_token", "unk_token", "pad_token")
    special_tokens = {name: text for name in names if (text := _token_text(config.get(name))) is not None}
    try:
        return ChatTemplate(source, special_tokens)
    except jinja2.TemplateSyntaxError as error:
        raise ModelFolderError(f"the chat template is not valid: {error}") from error


def _token_text(value: Any) -> str | None:
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
