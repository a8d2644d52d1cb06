"""Images as Qwen2-VL and Qwen2.5-VL see them: of any size, brought near to it in whole blocks of patches.

Source: Qwen2-VL, arXiv:2409.12191, §2.1, with the arithmetic of transformers' `Qwen2VLImageProcessor`. Made by `images.recipes`;
the tower reads the same numbers through `read_qwen_preprocessing`. Must not import torch.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from services.generator.core.images import Grid
from services.generator.images.preprocessor_config import (
    FILE_NAME,
    HARMLESS,
    Scaling,
    processor_type,
    read_preprocessor_config,
    read_scaling,
)
from services.generator.images.recipe import PreparedImage, prepared
from shared.modeling.config_reader import ConfigReader
from shared.settings.errors import ModelFolderError
from shared.settings.model_folder import read_json

_PROCESSORS = ("Qwen2VLImageProcessor", "Qwen2_5_VLImageProcessor")  # the second in Qwen2.5-VL's first folders
_DEFAULTS: Mapping[str, Any] = {
    "size": {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280},
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "resample": Image.Resampling.BICUBIC,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}


@dataclass(frozen=True, slots=True)
class QwenPreprocessing:
    """What a folder asks for.

    Attributes:
        patch_size: side of a patch in pixels.
        temporal_patch_size: frames in a patch; a still image is repeated as often.
        merge_size: side, in patches, of the block that becomes one row of the decoder.
        min_pixels: an image with fewer is enlarged.
        max_pixels: an image with more is made smaller.
    """

    patch_size: int
    temporal_patch_size: int
    merge_size: int
    min_pixels: int
    max_pixels: int
    scaling: Scaling

    @property
    def block_size(self) -> int:
        """Side, in pixels, of what becomes one row."""
        return self.patch_size * self.merge_size


class QwenRecipe:
    """See `ImageRecipe`."""

    def __init__(self, preprocessing: QwenPreprocessing, image_token_id: int) -> None:
        self.image_token_id = image_token_id
        self._preprocessing = preprocessing

    def grid_for(self, height: int, width: int) -> Grid:
        """(1, h, w) in blocks."""
        block = self._preprocessing.block_size
        new_height, new_width = fitting_size(height, width, self._preprocessing)
        return 1, new_height // block, new_width // block

    def prepare(self, image: Image.Image) -> PreparedImage:
        """Resized to whole blocks."""
        height, width = fitting_size(image.height, image.width, self._preprocessing)
        resized = image.resize((width, height), Image.Resampling.BICUBIC)
        return prepared(resized, self.grid_for(image.height, image.width), self._preprocessing)


def fitting_size(height: int, width: int, preprocessing: QwenPreprocessing) -> tuple[int, int]:
    """Height and width in whole blocks, near the given ones and with as many pixels as the model takes."""
    block = preprocessing.block_size
    rounded = round(height / block) * block, round(width / block) * block
    num_pixels = rounded[0] * rounded[1]
    # The order of the divisions is the reference's: another one rounds some sizes to another block.
    if num_pixels > preprocessing.max_pixels:
        shrink = math.sqrt(height * width / preprocessing.max_pixels)
        return max(block, _floor(height / shrink, block)), max(block, _floor(width / shrink, block))
    if num_pixels < preprocessing.min_pixels:
        grow = math.sqrt(preprocessing.min_pixels / (height * width))
        return math.ceil(height * grow / block) * block, math.ceil(width * grow / block) * block
    return rounded


def _floor(length: float, block: int) -> int:
    return math.floor(length / block) * block


def read_qwen_recipe(folder: Path) -> QwenRecipe:
    """The recipe of a Qwen2-VL or Qwen2.5-VL folder.

    Raises:
        ModelFolderError: as in `read_qwen_preprocessing`.
    """
    config = ConfigReader(read_json(folder / "config.json"), "config.json", {"image_token_id": 151_655})
    return QwenRecipe(read_qwen_preprocessing(folder), config.integer("image_token_id"))


def read_qwen_preprocessing(folder: Path) -> QwenPreprocessing:
    """Understand the folder's preprocessing settings.

    Raises:
        ModelFolderError: it is missing, or asks for what is not supported; the message names the key.
    """
    config = read_preprocessor_config(folder)
    kind = processor_type(config)
    if kind not in _PROCESSORS:
        raise ModelFolderError(
            f"{FILE_NAME}: image processor {kind} is not supported; supported: {', '.join(_PROCESSORS)}"
        )
    reader = ConfigReader(config, FILE_NAME, _DEFAULTS)
    _refuse_unsupported(reader)
    min_pixels, max_pixels = _limits(reader)
    preprocessing = QwenPreprocessing(
        patch_size=reader.integer("patch_size"),
        temporal_patch_size=reader.integer("temporal_patch_size"),
        merge_size=reader.integer("merge_size"),
        min_pixels=min_pixels,
        max_pixels=max_pixels,
        scaling=read_scaling(reader),
    )
    reader.refuse_unread(HARMLESS)
    return preprocessing


def _refuse_unsupported(reader: ConfigReader) -> None:
    if not reader.boolean("do_resize", default=True):
        raise ModelFolderError(f"{FILE_NAME}: do_resize false is not supported")
    for key in ("do_center_crop", "do_pad"):
        if reader.boolean(key):
            raise ModelFolderError(f"{FILE_NAME}: {key} is not supported for this architecture")
    if reader.value("resample") not in (None, Image.Resampling.BICUBIC):
        raise ModelFolderError(
            f"{FILE_NAME}: resample {reader.value('resample')} is not supported; supported: 3, bicubic"
        )
    if reader.value("data_format") not in (None, "channels_first"):
        raise ModelFolderError(f"{FILE_NAME}: data_format {reader.value('data_format')} is not supported")


def _limits(reader: ConfigReader) -> tuple[int, int]:
    """`min_pixels` and `max_pixels`, outside or inside of `size`, or the edges in `size` that mean numbers of pixels."""
    size = reader.value("size") or _DEFAULTS["size"]
    if not isinstance(size, dict):
        raise ModelFolderError(f"{FILE_NAME}: size is {size!r}, not an object")
    inner = ConfigReader(size, f"{FILE_NAME}: size")
    outer = [reader.optional_int(key) for key in ("min_pixels", "max_pixels")]
    smallest = outer[0] or inner.optional_int("min_pixels") or inner.integer("shortest_edge")
    largest = outer[1] or inner.optional_int("max_pixels") or inner.integer("longest_edge")
    if smallest > largest:
        raise ModelFolderError(f"{FILE_NAME}: at least {smallest} and at most {largest} pixels contradict each other")
    return smallest, largest
