"""Sizes, pixel values and grids of Qwen2-VL's preprocessing against transformers' processor on PIL, and what is refused."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil, smart_resize

from services.generator.images.qwen_recipe import fitting_size, read_qwen_preprocessing, read_qwen_recipe
from services.generator.vision.pixel_values import PixelScale
from services.generator.vision.qwen_config import read_qwen2_vision
from services.generator.vision.qwen_tower import to_patches
from shared.settings.errors import ModelFolderError

SIZE = {"shortest_edge": 4 * 28**2, "longest_edge": 40 * 28**2}


def write(folder, **settings):
    (folder / "config.json").write_text(json.dumps({"image_token_id": 9}))
    (folder / "preprocessor_config.json").write_text(
        json.dumps({"image_processor_type": "Qwen2VLImageProcessor", **settings})
    )
    return folder


def random_image(height, width):
    random = np.random.default_rng(height * 1000 + width)
    return Image.fromarray(random.integers(0, 256, (height, width, 3), dtype=np.uint8))


@pytest.mark.parametrize("size", [(140, 84), (10, 10), (300, 220), (13, 2600), (97, 411), (56, 56)], ids=str)
def test_pixels_and_grid_equal_transformers(tmp_path, size):
    Qwen2VLImageProcessorPil(size=SIZE).save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    recipe, image = read_qwen_recipe(tmp_path), random_image(*size)
    prepared = recipe.prepare(image)
    reference = Qwen2VLImageProcessorPil(size=SIZE)([image], return_tensors="pt")
    scale = PixelScale(read_qwen_preprocessing(tmp_path).scaling, torch.device("cpu"))
    ours = to_patches(scale([prepared.pixels])[0], read_qwen2_vision({"vision_config": {}}))
    assert torch.equal(ours, reference["pixel_values"])
    _, height, width = reference["image_grid_thw"][0].tolist()
    assert prepared.grid == recipe.grid_for(*size) == (1, height // 2, width // 2)


def test_sizes_equal_transformers(tmp_path):
    preprocessing = read_qwen_preprocessing(write(tmp_path, size=SIZE))
    random = np.random.default_rng(0)
    for height, width in random.integers(1, 800, (2000, 2)).tolist():
        if max(height, width) <= 200 * min(height, width):
            expected = smart_resize(height, width, 28, SIZE["shortest_edge"], SIZE["longest_edge"])
            assert fitting_size(height, width, preprocessing) == expected


def test_limits_in_every_dialect(tmp_path):
    def limits(**settings):
        preprocessing = read_qwen_preprocessing(write(tmp_path, **settings))
        return preprocessing.min_pixels, preprocessing.max_pixels

    assert limits() == (3136, 1_003_520)
    assert limits(min_pixels=784, max_pixels=7840) == (784, 7840)
    assert limits(size={"shortest_edge": 784, "longest_edge": 7840}) == (784, 7840)
    assert limits(size={"min_pixels": 784, "max_pixels": 7840}) == (784, 7840)
    assert limits(min_pixels=784, size={"min_pixels": 9, "longest_edge": 7840}) == (784, 7840)


def test_digest_tells_pixels_sizes_and_recipes_apart(tmp_path):
    recipe = read_qwen_recipe(write(tmp_path))
    other = read_qwen_recipe(write(tmp_path, image_mean=[0.5, 0.5, 0.5]))
    gray, white = (Image.new("RGB", (112, 56), color) for color in ("gray", "white"))
    tall = gray.transpose(Image.Transpose.ROTATE_90)
    assert recipe.image_token_id == 9
    assert recipe.prepare(gray).digest == recipe.prepare(gray.copy()).digest
    digests = {recipe.prepare(image).digest for image in (gray, white, tall)} | {other.prepare(gray).digest}
    assert len(digests) == 4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"image_processor_type": "CLIPImageProcessor"}, "image processor CLIPImageProcessor is not supported"),
        ({"do_resize": False}, "do_resize false is not supported"),
        ({"frames": 4}, "frames is not supported"),
        ({"do_center_crop": True}, "do_center_crop is not supported"),
        ({"resample": 2}, "resample 2 is not supported"),
        ({"size": {"height": 224, "width": 224}}, "size has no number shortest_edge"),
        ({"min_pixels": 100, "max_pixels": 99}, "contradict each other"),
        ({"image_std": [0.5]}, "image_mean and image_std must have three values"),
    ],
)
def test_other_preprocessing_is_refused(tmp_path, settings, message):
    with pytest.raises(ModelFolderError, match=message):
        read_qwen_preprocessing(write(tmp_path, **settings))
