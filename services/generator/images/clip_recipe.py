"""The preprocessing of CLIP's and SigLIP's towers: resize, cut the middle out; every image ends up with one size.

Made by `images.recipes` for the API process; `read_clip_preprocessing` also tells the encoder how values are scaled. Uses Pillow,
whose filters are those of transformers' PIL processors. Must not import torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from services.generator.core.images import Grid
from services.generator.images.llava_config import read_llava_config
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

_BICUBIC = 3
_OF_CLIP: Mapping[str, Any] = {
    "size": {"shortest_edge": 224},
    "crop_size": {"height": 224, "width": 224},
    "do_center_crop": True,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
_OF_SIGLIP: Mapping[str, Any] = {"size": {"height": 224, "width": 224}, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
_DEFAULTS = {"CLIPImageProcessor": _OF_CLIP, "LlavaImageProcessor": _OF_CLIP, "SiglipImageProcessor": _OF_SIGLIP}

Size = tuple[int, int]
"""(height, width)"""


@dataclass(frozen=True, slots=True)
class ClipPreprocessing:
    """What a folder asks for.

    Attributes:
        size: both sides after resizing, or the length that the shorter side gets, the other in proportion.
        cropped: size of the middle that is kept; None keeps all.
    """

    size: Size | int
    cropped: Size | None
    resample: Image.Resampling
    scaling: Scaling

    @property
    def output(self) -> Size | None:
        """Size of what the tower sees; None where it depends on the image."""
        return self.cropped or (None if isinstance(self.size, int) else self.size)

    def resized_of(self, height: int, width: int) -> Size:
        """Size after resizing of an image of this size; the longer side is rounded down."""
        if not isinstance(self.size, int):
            return self.size
        short, long = sorted((height, width))
        longer = int(self.size * long / short)
        return (longer, self.size) if width <= height else (self.size, longer)


def read_clip_preprocessing(folder: Path) -> ClipPreprocessing:
    """Understand the folder's preprocessing settings.

    Raises:
        ModelFolderError: a processor, a key or a value that is not supported.
    """
    config = read_preprocessor_config(folder)
    kind = processor_type(config)
    if kind not in _DEFAULTS:
        raise ModelFolderError(
            f"{FILE_NAME}: image processor {kind} is not supported; supported: {', '.join(_DEFAULTS)}"
        )
    reader = ConfigReader(config, FILE_NAME, _DEFAULTS[kind])
    if not reader.boolean("do_resize", default=True):
        raise ModelFolderError(f"{FILE_NAME}: do_resize false is not supported")
    if reader.boolean("do_pad"):
        raise ModelFolderError(f"{FILE_NAME}: do_pad is not supported")
    size, crop_size = _size(reader.value("size")), reader.value("crop_size")
    cropped = _both_sides("crop_size", crop_size) if reader.boolean("do_center_crop") else None
    _check_crop(size, cropped)
    preprocessing = ClipPreprocessing(size, cropped, _resample(reader), read_scaling(reader))
    for key, usual in (("data_format", "channels_first"), ("pad_size", None), ("default_to_square", False)):
        if reader.value(key) not in (None, usual):
            raise ModelFolderError(f"{FILE_NAME}: {key} {reader.value(key)} is not supported")
    reader.refuse_unread(HARMLESS)
    return preprocessing


def _size(size: Any) -> Size | int:
    if isinstance(size, dict) and set(size) == {"shortest_edge"}:
        size = size["shortest_edge"]
    if type(size) is int and size > 0:  # so that a bare number is that of the shorter side, as it was in old folders
        return size
    return _both_sides("size", size)


def _both_sides(key: str, size: Any) -> Size:
    if type(size) is int:
        size = {"height": size, "width": size}
    if not isinstance(size, dict) or set(size) != {"height", "width"}:
        raise ModelFolderError(f"{FILE_NAME}: {key} {size} is not supported")
    if any(type(value) is not int or value < 1 for value in size.values()):
        raise ModelFolderError(f"{FILE_NAME}: {key} {size} is not a size in pixels")
    return size["height"], size["width"]


def _resample(reader: ConfigReader) -> Image.Resampling:
    value = reader.value("resample")
    try:
        return Image.Resampling(_BICUBIC if value is None else value)
    except ValueError:
        raise ModelFolderError(f"{FILE_NAME}: resample {value} is not supported") from None


def _check_crop(size: Size | int, cropped: Size | None) -> None:
    """The middle must lie within every resized image; transformers would fill up with black."""
    smallest = (size, size) if isinstance(size, int) else size
    if cropped is not None and (cropped[0] > smallest[0] or cropped[1] > smallest[1]):
        raise ModelFolderError(f"{FILE_NAME}: crop_size {cropped} larger than size {smallest} is not supported")


class ClipRecipe:
    """The `ImageRecipe` of a LLaVA model; see there.

    Args:
        grid: rows (t, h, w) of every image.
    """

    def __init__(self, preprocessing: ClipPreprocessing, image_token_id: int, grid: Grid) -> None:
        self.image_token_id = image_token_id
        self._preprocessing = preprocessing
        self._grid = grid

    def grid_for(self, height: int, width: int) -> Grid:
        """The same for every image."""
        return self._grid

    def prepare(self, image: Image.Image) -> PreparedImage:
        """Resize, and cut the middle out."""
        preprocessing = self._preprocessing
        height, width = preprocessing.resized_of(image.height, image.width)
        image = image.resize((width, height), preprocessing.resample)
        if preprocessing.cropped is not None:
            kept_height, kept_width = preprocessing.cropped
            top, left = (height - kept_height) // 2, (width - kept_width) // 2
            image = image.crop((left, top, left + kept_width, top + kept_height))
        return prepared(image, self._grid, preprocessing)


def read_llava_recipe(folder: Path) -> ClipRecipe:
    """The recipe of the `LlavaForConditionalGeneration` in `folder`.

    Raises:
        ModelFolderError: something in its configuration is not supported, or its tower sees images of another size.
    """
    config = read_llava_config(read_json(folder / "config.json"))
    preprocessing = read_clip_preprocessing(folder)
    if preprocessing.output != (config.image_size, config.image_size):
        made = preprocessing.output or "images of different sizes"
        raise ModelFolderError(
            f"{FILE_NAME} makes {made}, but the tower sees {config.image_size} x {config.image_size}"
        )
    return ClipRecipe(preprocessing, config.image_token_id, config.grid)
