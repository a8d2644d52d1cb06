"""Finds a folder's preprocessing settings, and reads the part that every image processor has: how 8-bit values become floats.

Used by the recipes in the API process and by the encoders in the engine process. Must not import torch.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.modeling.config_reader import ConfigReader
from shared.settings.errors import ModelFolderError
from shared.settings.model_folder import read_json

FILE_NAME = "preprocessor_config.json"

HARMLESS = (
    *("image_processor_type", "feature_extractor_type", "processor_class", "auto_map", "_valid_processor_keys"),
    *("do_convert_rgb", "default_to_square", "input_data_format", "return_tensors", "disable_grouping", "device"),
    *("image_seq_length", "num_additional_image_tokens"),
)
"""Keys that say nothing which changes the numbers: names, how arrays are passed, or what config.json says better."""

_NESTED, _NESTED_KEY = "processor_config.json", "image_processor"
_SUFFIXES = ("Fast", "Pil")


@dataclass(frozen=True, slots=True)
class Scaling:
    """value → (value · factor - mean) / std, per channel."""

    factor: float
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def table(self) -> NDArray[np.float32]:
        """The float of each 8-bit value, [3, 256].

        Semantics: the product is rounded to float32 before the rest, which is in float32, as in transformers' PIL processors.
        """
        scaled = (np.arange(256, dtype=np.float64) * self.factor).astype(np.float32)
        mean, std = (np.array(values, np.float32)[:, None] for values in (self.mean, self.std))
        table: NDArray[np.float32] = (scaled - mean) / std
        return table


def read_preprocessor_config(folder: Path) -> dict[str, Any]:
    """The settings, from the file that transformers takes them from: the newer one, where they are nested, before the older.

    Raises:
        ModelFolderError: there are none.
    """
    if (folder / _NESTED).is_file():
        nested = read_json(folder / _NESTED).get(_NESTED_KEY)
        if isinstance(nested, dict):
            return nested
    return read_json(folder / FILE_NAME)


def processor_type(config: dict[str, Any]) -> str:
    """Name of the image processor, whichever of its implementations wrote the folder: `CLIPImageProcessor`."""
    name = str(config.get("image_processor_type") or config.get("feature_extractor_type") or "(none)")
    for suffix in _SUFFIXES:
        name = name.removesuffix(suffix)
    return name.replace("FeatureExtractor", "ImageProcessor")


def read_scaling(reader: ConfigReader) -> Scaling:
    """Understand `do_rescale`, `rescale_factor`, `do_normalize`, `image_mean` and `image_std`.

    Raises:
        ModelFolderError: a value that is no number, or not one per channel.
    """
    factor = reader.optional_number("rescale_factor") or 1 / 255
    mean, std = reader.numbers("image_mean"), reader.numbers("image_std")
    if len(mean) != 3 or len(std) != 3 or min(std) <= 0:
        raise ModelFolderError(f"{FILE_NAME}: image_mean and image_std must have three values, the latter above 0")
    if not reader.boolean("do_rescale", default=True):
        factor = 1.0
    if not reader.boolean("do_normalize", default=True):
        mean, std = (0.0,) * 3, (1.0,) * 3
    return Scaling(float(factor), mean, std)
