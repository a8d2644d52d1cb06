"""How a model folder says that texts become vectors: prompts, lower-casing, and the modules after the encoder; no torch here.

Read once at start from the sentence-transformers files beside the weights.
What a folder declares and this project cannot do stops the start with the name of it; nothing is guessed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from shared.modeling.vector_modules import DenseModule, Pooling, VectorModules, read_vector_modules
from shared.settings.errors import ModelFolderError, StartError
from shared.settings.model_folder import read_json
from shared.text.preparer import InputKind

_QUERY_PROMPTS = ("query",)
_DOCUMENT_PROMPTS = ("document", "passage", "corpus")


@dataclass(frozen=True)
class RecipeOverrides:
    """What the operator says instead of the folder; None leaves it to the folder."""

    pooling: Pooling | None = None
    is_normalized: bool | None = None


@dataclass(frozen=True)
class EncodingRecipe:
    """The steps from text to vector beside the encoder itself.

    Attributes:
        pooling: at least one; vectors of several kinds stand side by side.
        is_lowercased: the text is lower-cased before the tokenizer sees it.
        prompts: text put before an input of each kind; empty for none.
    """

    pooling: tuple[Pooling, ...]
    dense: tuple[DenseModule, ...]
    is_normalized: bool
    is_lowercased: bool
    prompts: Mapping[InputKind, str]


def read_recipe(folder: Path, overrides: RecipeOverrides) -> EncodingRecipe:
    """The recipe of `folder`, with `overrides` on top.

    Raises:
        ModelFolderError: a file cannot be read, or asks for something that is not supported.
        StartError: the folder leaves open what only the operator can know.
    """
    modules = read_vector_modules(folder) or VectorModules(pooling=(), dense=(), is_normalized=True)
    pooling = (overrides.pooling,) if overrides.pooling else modules.pooling
    if not pooling:
        choices = ", ".join(get_args(Pooling))
        raise StartError(f"{folder.name} declares no pooling: choose one with --pooling ({choices})")
    settings = _read_optional(folder / "sentence_bert_config.json")
    return EncodingRecipe(
        pooling=pooling,
        dense=modules.dense,
        is_normalized=modules.is_normalized if overrides.is_normalized is None else overrides.is_normalized,
        is_lowercased=bool(settings.get("do_lower_case", False)),
        prompts=_read_prompts(folder),
    )


def _read_prompts(folder: Path) -> dict[InputKind, str]:
    config = _read_optional(folder / "config_sentence_transformers.json")
    prompts = {name: str(text) for name, text in (config.get("prompts") or {}).items() if text is not None}
    default_name = config.get("default_prompt_name")
    if default_name is not None and default_name not in prompts:
        raise ModelFolderError(f"config_sentence_transformers.json gives no prompt {default_name!r}, its default")
    default = prompts.get(default_name, "")

    def first_of(names: tuple[str, ...]) -> str:
        return next((prompts[name] for name in names if name in prompts), default)

    return {"text": default, "query": first_of(_QUERY_PROMPTS), "document": first_of(_DOCUMENT_PROMPTS)}


def _read_optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}
