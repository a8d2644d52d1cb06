"""Tiny models that see images, as we and as transformers see them, and prompts for them; for tests of the engine."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from transformers import (
    AutoImageProcessor,
    LlavaForConditionalGeneration,
    PreTrainedModel,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLForConditionalGeneration,
)

from services.generator.core.images import PromptImage
from services.generator.engine.build import BuiltModel, build_model
from services.generator.images.recipe import ImageRecipe
from services.generator.images.recipes import read_image_recipe
from services.generator.settings import GeneratorSettings
from tests.fakes.tiny_qwen_vision import save_tiny_qwen2_5_vl, save_tiny_qwen2_vl
from tests.fakes.tiny_vision import IMAGE_TOKEN_ID, save_tiny_llava
from tests.generator.driving import OfflineEngine

FAMILIES = {
    "llava_clip": (partial(save_tiny_llava, tower="clip"), LlavaForConditionalGeneration),
    "llava_siglip": (partial(save_tiny_llava, tower="siglip"), LlavaForConditionalGeneration),
    "qwen2": (save_tiny_qwen2_vl, Qwen2VLForConditionalGeneration),
    "qwen2_5": (save_tiny_qwen2_5_vl, Qwen2_5_VLForConditionalGeneration),
}


@dataclass
class Prompt:
    """Token ids with placeholders, our images, and the pictures that they come from."""

    token_ids: list[int]
    images: tuple[PromptImage, ...]
    pictures: list[Image.Image]


@dataclass
class Vision:
    """One tiny model, as we and as transformers see it."""

    folder: Path
    recipe: ImageRecipe
    reference: PreTrainedModel

    def build(self, **changes) -> BuiltModel:
        settings = GeneratorSettings(model=str(self.folder), kv_cache_memory_bytes=2**22, max_model_len=128)
        return build_model(settings.model_copy(update=changes))

    def prompt(self, *parts: int | str) -> Prompt:
        """A number is so many tokens of text; a word names a picture by its height, width and seed, as in "24x40#1".

        transformers takes Qwen's images for one where no text is between them.
        """
        random, token_ids, images, pictures = np.random.default_rng(7), [], [], []
        for part in parts:
            if isinstance(part, int):
                token_ids += random.integers(0, 256, part).tolist()
                continue
            size, _, seed = part.partition("#")
            shape = (*map(int, size.split("x")), 3)
            pictures.append(Image.fromarray(np.random.default_rng(int(seed)).integers(0, 256, shape, np.uint8)))
            prepared = self.recipe.prepare(pictures[-1])
            images.append(PromptImage(len(token_ids), prepared.grid, prepared.digest, prepared.pixels))
            token_ids += [self.recipe.image_token_id] * images[-1].num_rows
        return Prompt(token_ids, tuple(images), pictures)

    @torch.inference_mode()
    def logits(self, prompt: Prompt, output: list[int]) -> torch.Tensor:
        """transformers' [T, V] for a prompt and what follows it."""
        ids = torch.tensor([prompt.token_ids + output])
        if not prompt.pictures:
            return self.reference(ids).logits[0]
        inputs = AutoImageProcessor.from_pretrained(self.folder, backend="pil")(prompt.pictures, return_tensors="pt")
        if "image_grid_thw" in inputs:
            inputs["mm_token_type_ids"] = (ids == self.recipe.image_token_id).int()
        return self.reference(ids, **inputs).logits[0]

    def check(self, prompt: Prompt, output: list[int]) -> None:
        """The output is transformers' greedy one, of text alone: it counts placeholders wherever they come from."""
        logits = self.logits(prompt, output)[len(prompt.token_ids) - 1 : -1]
        assert output == logits[:, :IMAGE_TOKEN_ID].argmax(-1).tolist()  # the placeholder is the last id


def load_vision(family: str, folder: Path) -> Vision:
    """A tiny model of one of `FAMILIES`, written to a folder."""
    save, reference = FAMILIES[family]
    save(folder)
    return Vision(folder, read_image_recipe(folder), reference.from_pretrained(folder).eval())


def generate(built: BuiltModel, *prompts: Prompt, **options) -> list[list[int]]:
    """Greedy text unless `each` says something else."""
    options = options if "each" in options else {"logit_bias": {IMAGE_TOKEN_ID: -1e9}, **options}
    engine = OfflineEngine(built)
    return engine.generate([p.token_ids for p in prompts], images=[p.images for p in prompts], **options)
