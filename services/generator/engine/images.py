"""What the engine needs for images: the model's encoder, the cache of its rows, and how much of either a step may use.

Called by `engine.build`, once, at start.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image

from services.generator.core.images import PromptImage
from services.generator.core.specs import ImageLimits, SchedulerLimits
from services.generator.images.recipe import ImageRecipe
from services.generator.images.recipes import read_image_recipe
from services.generator.runner.encoder_cache import EncoderCache
from services.generator.settings import GeneratorSettings
from services.generator.vision.loader import load_vision_encoder
from shared.modeling.config import DecoderConfig
from shared.settings.errors import StartError

MIN_CACHED_ROWS = 4096
"""--encoder-cache-size unless given, where a context is not longer."""

LARGEST_SIDE = 4096
"""Pixels; of the image that memory is measured with, unless the model takes no such image."""


@dataclass(frozen=True, slots=True)
class LoadedImages:
    """The parts, and what they weigh; nothing of a model that sees no images.

    Attributes:
        run_largest: encode as much as one step may.
    """

    limits: ImageLimits | None = None
    cache: EncoderCache | None = None
    num_bytes: int = 0
    run_largest: Callable[[], None] = lambda: None

    @property
    def max_request_rows(self) -> int:
        """Rows that the images of one request may have together."""
        return 0 if self.limits is None else self.limits.num_cached_rows


def load_images(
    settings: GeneratorSettings,
    folder: Path,
    config: DecoderConfig,
    limits: SchedulerLimits,
    dtype: torch.dtype,
    device: torch.device,
) -> LoadedImages:
    """The encoder of the folder's model on its device; nothing for a model of text, and where weights are made up.

    Raises:
        ModelFolderError: its tower or its preprocessing is not supported, or incomplete.
        StartError: its placeholder is no token of the decoder.
    """
    recipe = read_image_recipe(folder)
    encoder = None if settings.load_format == "dummy" else load_vision_encoder(folder, dtype, device)
    if recipe is None or encoder is None:
        return LoadedImages()
    if recipe.image_token_id >= config.vocab_size:
        raise StartError(
            f"the image placeholder {recipe.image_token_id} is beyond the vocabulary of {config.vocab_size}"
        )
    own = ImageLimits(
        recipe.image_token_id,
        settings.encoder_cache_size or max(limits.max_model_len, MIN_CACHED_ROWS),
        settings.max_num_encoder_tokens or limits.max_num_batched_tokens,
        has_axes=config.rope.sections is not None,
    )
    cache = EncoderCache(encoder, own.num_cached_rows, config.hidden_size, dtype, device)
    most = min(own.num_cached_rows, limits.max_model_len)

    @torch.inference_mode()
    def run_largest() -> None:
        encoder(_largest_images(recipe, own.max_encoded_rows, most))

    return LoadedImages(own, cache, encoder.num_bytes + cache.num_bytes, run_largest)


def _largest_images(recipe: ImageRecipe, max_step_rows: int, max_image_rows: int) -> list[PromptImage]:
    """As many of the largest square images that a request may have as are encoded in one step, and one at least."""
    side = LARGEST_SIDE
    while side > 1 and math.prod(recipe.grid_for(side, side)) > max_image_rows:
        side = side * 3 // 4
    prepared = recipe.prepare(Image.new("RGB", (side, side)))
    image = PromptImage(0, prepared.grid, prepared.digest, prepared.pixels)
    return [image] * max(1, max_step_rows // image.num_rows)
