"""How a model folder says that texts become vectors: prompts, lower-casing, and the modules after the encoder; no torch here.

Read once at start from the sentence-transformers files beside the weights.
What a folder declares and this project cannot do stops the start with the name of it; nothing is guessed.
"""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from shared.modeling.vector_modules import DenseModule, Pooling, VectorModules, read_vector_modules
from shared.settings.errors import ModelFolderError, StartError
from shared.settings.model_folder import read_json
from shared.text.prompts import Prompts


@dataclass(frozen=True)
class RecipeOverrides:
    """What the operator says instead of the folder; None leaves it to the folder."""

    pooling: Pooling | None = None
    is_normalized: bool | None = None
    is_matryoshka: bool = False


@dataclass(frozen=True)
class EncodingRecipe:
    """The steps from text to vector beside the encoder itself.

    Attributes:
        pooling: at least one; vectors of several kinds stand side by side.
        is_lowercased: the text is lower-cased before the tokenizer sees it.
        shorter_dims: lengths to which a vector may be cut; None for every one.
    """

    pooling: tuple[Pooling, ...]
    dense: tuple[DenseModule, ...]
    is_normalized: bool
    is_lowercased: bool
    prompts: Prompts
    shorter_dims: Collection[int] | None


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
        shorter_dims=None if overrides.is_matryoshka else _read_shorter_dims(folder),
    )


def _read_prompts(folder: Path) -> Prompts:
    config = _read_optional(folder / "config_sentence_transformers.json")
    by_name = {name: str(text) for name, text in (config.get("prompts") or {}).items() if text is not None}
    default_name = config.get("default_prompt_name")
    if default_name is not None and default_name not in by_name:
        raise ModelFolderError(f"config_sentence_transformers.json gives no prompt {default_name!r}, its default")
    return Prompts(by_name, by_name.get(default_name, ""))


def _read_shorter_dims(folder: Path) -> Collection[int] | None:
    """Lengths to which vectors may be cut, as config.json declares them; None for every one."""
    config = _read_optional(folder / "config.json")
    lengths = config.get("matryoshka_dimensions")
    if lengths is None:
        return None if config.get("is_matryoshka") is True else frozenset()
    if not isinstance(lengths, list) or not all(type(length) is int and length > 0 for length in lengths):
        raise ModelFolderError("config.json: matryoshka_dimensions is not a list of lengths")
    return frozenset(lengths)


def _read_optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}
