"""How a model folder says that texts become vectors: prompts, lower-casing, length, pooling, normalisation; no torch here.

Read once at start from the sentence-transformers files beside the weights, in their old and their new dialect.
What a folder declares and this project cannot do stops the start with the name of it; nothing is guessed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from shared.settings.errors import ModelFolderError, StartError
from shared.settings.model_folder import read_json, read_json_list
from shared.text.preparer import InputKind

Pooling = Literal["mean", "cls", "last"]

_MODES: dict[str, Pooling] = {"mean": "mean", "cls": "cls", "lasttoken": "last"}
_OLD_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_QUERY_PROMPTS = ("query",)
_DOCUMENT_PROMPTS = ("document", "passage", "corpus")


@dataclass(frozen=True)
class RecipeOverrides:
    """What the operator says instead of the folder; None leaves it to the folder."""

    pooling: Pooling | None = None
    is_normalized: bool | None = None
    max_tokens: int | None = None


@dataclass(frozen=True)
class EncodingRecipe:
    """The steps from text to vector beside the encoder itself.

    Attributes:
        max_tokens: longest text in tokens, special tokens included; None where nothing is said.
        is_lowercased: the text is lower-cased before the tokenizer sees it.
        prompts: text put before an input of each kind; empty for none.
    """

    pooling: Pooling
    is_normalized: bool
    max_tokens: int | None
    is_lowercased: bool
    prompts: Mapping[InputKind, str]


def read_recipe(folder: Path, overrides: RecipeOverrides) -> EncodingRecipe:
    """The recipe of `folder`, with `overrides` on top.

    Raises:
        ModelFolderError: a file cannot be read, or asks for something that is not supported.
        StartError: the folder leaves open what only the operator can know.
    """
    modules = _read_modules(folder)
    pooling = overrides.pooling or _declared_pooling(folder, modules)
    if pooling is None:
        choices = ", ".join(get_args(Pooling))
        raise StartError(f"{folder.name} declares no pooling: choose one with --pooling ({choices})")
    is_normalized = "Normalize" in modules if modules else True
    settings = _read_optional(folder / "sentence_bert_config.json")
    return EncodingRecipe(
        pooling=pooling,
        is_normalized=is_normalized if overrides.is_normalized is None else overrides.is_normalized,
        max_tokens=overrides.max_tokens or _declared_max_tokens(folder, settings),
        is_lowercased=bool(settings.get("do_lower_case", False)),
        prompts=_read_prompts(folder),
    )


def _read_modules(folder: Path) -> dict[str, str]:
    """Module class names in order, each with its path; empty where the folder declares none."""
    path = folder / "modules.json"
    if not path.is_file():
        return {}
    entries = read_json_list(path)
    modules = {str(entry.get("type", "")).rsplit(".", 1)[-1]: str(entry.get("path", "")) for entry in entries}
    for name in modules:
        if name not in ("Transformer", "Pooling", "Normalize"):
            raise ModelFolderError(f"modules.json asks for the module {name}, which is not supported yet")
    order = [name for name in ("Transformer", "Pooling", "Normalize") if name in modules]
    if list(modules) != order or len(modules) != len(entries) or "Transformer" not in modules:
        raise ModelFolderError(
            f"modules.json lists {' → '.join(modules)}; supported is Transformer → Pooling → Normalize"
        )
    if modules["Transformer"] not in ("", "."):
        raise ModelFolderError(
            f"modules.json keeps the weights in {modules['Transformer']}; they must be in the folder itself"
        )
    return modules


def _declared_pooling(folder: Path, modules: Mapping[str, str]) -> Pooling | None:
    if "Pooling" not in modules:
        return None
    config = read_json(folder / modules["Pooling"] / "config.json")
    mode = config.get("pooling_mode")
    modes = [mode] if isinstance(mode, str) else mode or [new for old, new in _OLD_MODES.items() if config.get(old)]
    if len(modes) != 1 or modes[0] not in _MODES:
        raise ModelFolderError(
            f"the Pooling module asks for {' and '.join(map(str, modes)) or 'nothing'}; supported is one of {', '.join(_MODES)}"
        )
    if config.get("include_prompt", True) is False:
        raise ModelFolderError(
            "the Pooling module leaves out the prompt (include_prompt false), which is not supported yet"
        )
    return _MODES[modes[0]]


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


def _declared_max_tokens(folder: Path, settings: Mapping[str, Any]) -> int | None:
    declared = settings.get("max_seq_length") or _read_optional(folder / "tokenizer_config.json").get(
        "model_max_length"
    )
    return int(declared) if declared else None


def _read_optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}
