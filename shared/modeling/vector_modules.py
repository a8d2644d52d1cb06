"""What the modules beside a folder's weights make of token states: pooling, dense layers, unit length; no torch here.

Read by `recipe` from `modules.json` and the modules' own folders, in sentence-transformers' old and new dialect.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from shared.modeling.config_reader import ConfigReader
from shared.settings.errors import ModelFolderError
from shared.settings.model_folder import read_json, read_json_list

Pooling = Literal["mean", "cls", "last", "max", "weightedmean", "mean_sqrt_len"]
DenseActivation = Literal["tanh", "identity", "gelu", "relu", "silu", "sigmoid"]

_MODES: Mapping[str, Pooling] = {
    "mean": "mean",
    "cls": "cls",
    "lasttoken": "last",
    "max": "max",
    "weightedmean": "weightedmean",
    "mean_sqrt_len_tokens": "mean_sqrt_len",
}
_OLD_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
ACTIVATION_CLASSES: Mapping[str, DenseActivation] = {
    "Tanh": "tanh",
    "Identity": "identity",
    "GELU": "gelu",
    "ReLU": "relu",
    "SiLU": "silu",
    "Sigmoid": "sigmoid",
}
_HARMLESS_OF_DENSE = ("module_input_name", "module_output_name", "use_residual")


@dataclass(frozen=True)
class DenseModule:
    """A linear layer over the pooled vector.

    Attributes:
        folder: where its weights are.
    """

    folder: Path
    num_in: int
    num_out: int
    has_bias: bool
    activation: DenseActivation


@dataclass(frozen=True)
class VectorModules:
    """The steps after the encoder, in their order: pooling, dense layers, unit length.

    Attributes:
        pooling: vectors of several kinds stand side by side; empty where the folder declares none.
    """

    pooling: tuple[Pooling, ...]
    dense: tuple[DenseModule, ...]
    is_normalized: bool


def read_vector_modules(folder: Path) -> VectorModules | None:
    """What `modules.json` in `folder` lists; None where there is none.

    Raises:
        ModelFolderError: a module, an order of modules or a setting of one that is not supported.
    """
    path = folder / "modules.json"
    if not path.is_file():
        return None
    modules = [
        (str(entry.get("type", "")).rsplit(".", 1)[-1], str(entry.get("path", ""))) for entry in read_json_list(path)
    ]
    _check_order([name for name, _ in modules])
    if modules[0][1] not in ("", "."):
        raise ModelFolderError(f"modules.json keeps the weights in {modules[0][1]}; they must be in the folder itself")
    pooling = [_read_pooling(folder / place) for name, place in modules if name == "Pooling"]
    dense = [_read_dense(folder / place) for name, place in modules if name == "Dense"]
    return VectorModules(pooling[0] if pooling else (), tuple(dense), modules[-1][0] == "Normalize")


def _check_order(names: Sequence[str]) -> None:
    known = ("Transformer", "Pooling", "Dense", "Normalize")
    for name in names:
        if name not in known:
            raise ModelFolderError(f"modules.json asks for the module {name}, which is not supported")
    has_order = list(names) == sorted(names, key=known.index)
    are_single = all(names.count(name) <= 1 for name in known if name != "Dense")
    has_pooling = "Pooling" in names or len(names) == 1
    if not (has_order and are_single and has_pooling and "Transformer" in names):
        raise ModelFolderError(
            f"modules.json lists {' → '.join(names)}; supported is Transformer → Pooling → Dense … → Normalize"
        )


def _read_pooling(folder: Path) -> tuple[Pooling, ...]:
    config = read_json(folder / "config.json")
    mode = config.get("pooling_mode")
    modes = [mode] if isinstance(mode, str) else mode or [new for old, new in _OLD_MODES.items() if config.get(old)]
    if not modes or any(name not in _MODES for name in modes):
        raise ModelFolderError(
            f"the Pooling module asks for {' and '.join(map(str, modes)) or 'nothing'}; supported are {', '.join(_MODES)}"
        )
    if config.get("include_prompt", True) is False:
        raise ModelFolderError(
            "the Pooling module leaves out the prompt (include_prompt false), which is not supported"
        )
    return tuple(_MODES[name] for name in modes)


def _read_dense(folder: Path) -> DenseModule:
    config = read_json(folder / "config.json")
    reader = ConfigReader(config, f"{folder.name}/config.json")
    where = config.get("module_input_name") or "sentence_embedding"
    if where != "sentence_embedding" or config.get("module_output_name") not in (None, where):
        raise ModelFolderError(
            f"{folder.name} works on {where}, which is not supported; supported is sentence_embedding"
        )
    if config.get("use_residual"):
        raise ModelFolderError(f"{folder.name}: use_residual true is not supported")
    dense = DenseModule(
        folder,
        num_in=reader.integer("in_features"),
        num_out=reader.integer("out_features"),
        has_bias=reader.boolean("bias", default=True),
        activation=read_activation(reader.value("activation_function"), folder.name, default="tanh"),
    )
    reader.refuse_unread(_HARMLESS_OF_DENSE)
    return dense


def read_activation(path: Any, where: str, *, default: DenseActivation) -> DenseActivation:
    """The activation that a dotted path of one of torch's classes names, `default` for None.

    Raises:
        ModelFolderError: another one; nothing is imported to find out what it is.
    """
    if path is None:
        return default
    package, _, name = str(path).rpartition(".")
    if not package.startswith("torch.nn") or name not in ACTIVATION_CLASSES:
        raise ModelFolderError(f"{where}: the activation {path} is not supported")
    return ACTIVATION_CLASSES[name]
