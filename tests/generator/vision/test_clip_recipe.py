"""The preprocessing of CLIP's and SigLIP's towers: the same values as transformers' PIL processors, and what it refuses."""

import json

import numpy as np
import pytest
from PIL import Image
from transformers import CLIPImageProcessorPil, SiglipImageProcessorPil

from services.generator.images.clip_recipe import ClipRecipe, read_clip_preprocessing
from services.generator.images.recipes import read_image_recipe
from shared.settings.errors import ModelFolderError
from tests.fakes.tiny_vision import IMAGE_TOKEN_ID, save_preprocessing, save_tiny_llava
from tests.generator.conftest import save_tiny_llama

PROCESSORS = {"clip": CLIPImageProcessorPil, "siglip": SiglipImageProcessorPil}
SIZES = [(16, 16), (3, 5), (64, 48), (47, 64), (1, 200), (17, 16)]  # height, width


def noise(height, width):
    return Image.fromarray(np.random.default_rng(height).integers(0, 256, (height, width, 3), np.uint8))


def values(folder, image):
    """What the tower would see: [3, H, W]."""
    preprocessing = read_clip_preprocessing(folder)
    pixels = ClipRecipe(preprocessing, IMAGE_TOKEN_ID, (1, 4, 4)).prepare(image).pixels
    bytes_of = np.frombuffer(pixels.data, np.uint8).reshape(pixels.height, pixels.width, 3)
    return np.stack([preprocessing.scaling.table()[channel][bytes_of[..., channel]] for channel in range(3)])


@pytest.mark.parametrize(
    ("tower", "changes"),
    [
        ("clip", {}),
        ("clip", {"size": {"shortest_edge": 21}, "crop_size": {"height": 16, "width": 15}}),
        ("clip", {"size": {"height": 20, "width": 18}, "resample": 2, "rescale_factor": 1 / 128}),
        ("clip", {"size": {"height": 9, "width": 7}, "do_center_crop": False, "do_normalize": False}),
        ("siglip", {}),
        ("siglip", {"do_rescale": False, "resample": 0}),
        ("siglip", {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]}),
    ],
)
def test_values_are_those_of_the_reference(tmp_path, tower, changes):
    folder = save_preprocessing(tmp_path, tower, **changes)
    reference = PROCESSORS[tower].from_pretrained(folder)
    for size in SIZES:
        image = noise(*size)
        theirs = reference(images=image, return_tensors="np")["pixel_values"][0]
        assert np.array_equal(values(folder, image), theirs), size


def test_newer_folders_nest_the_settings_and_those_count(tmp_path):
    folder = save_preprocessing(tmp_path, "siglip")
    nested = {
        "image_processor": {"image_processor_type": "CLIPImageProcessorFast"},
        "processor_class": "LlavaProcessor",
    }
    (folder / "processor_config.json").write_text(json.dumps(nested))
    preprocessing = read_clip_preprocessing(folder)
    theirs = CLIPImageProcessorPil()
    assert preprocessing.output == (theirs.crop_size["height"], theirs.crop_size["width"])
    assert preprocessing.size == theirs.size["shortest_edge"]
    assert preprocessing.scaling.mean == tuple(theirs.image_mean)
    assert preprocessing.scaling.std == tuple(theirs.image_std)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"do_resize": False}, "do_resize"),
        ({"do_pad": True}, "do_pad"),
        ({"size": {"longest_edge": 16}}, "size"),
        ({"size": {"height": 0, "width": 4}}, "size"),
        ({"crop_size": {"height": 17, "width": 16}}, "crop_size"),
        ({"resample": 17}, "resample"),
        ({"image_std": [0.0, 1.0, 1.0]}, "image_std"),
        ({"image_mean": [0.5]}, "image_mean"),
        ({"do_split_image": True}, "do_split_image"),
        ({"image_processor_type": "Idefics3ImageProcessor"}, "Idefics3ImageProcessor"),
    ],
)
def test_unsupported_settings_are_refused_by_name(tmp_path, change, named):
    folder = save_preprocessing(tmp_path, "clip")
    path = folder / "preprocessor_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ModelFolderError, match=named):
        read_clip_preprocessing(folder)


@pytest.mark.parametrize(
    ("tower", "strategy", "grid"),
    [
        ("clip", "default", (1, 4, 4)),
        ("clip", "full", (1, 1, 17)),
        ("siglip", "full", (1, 4, 4)),
        ("siglip", "default", (1, 1, 15)),
    ],
)
def test_rows_of_an_image_are_what_the_projector_gets(tmp_path, tower, strategy, grid):
    folder = save_tiny_llava(tmp_path, tower, vision_feature_select_strategy=strategy)
    recipe = read_image_recipe(folder)
    assert recipe.image_token_id == IMAGE_TOKEN_ID
    assert recipe.grid_for(30, 50) == grid
    assert recipe.prepare(noise(30, 50)).grid == grid


def test_the_digest_is_of_pixels_size_and_recipe(tmp_path):
    def digest(image, **changes):
        return (
            ClipRecipe(
                read_clip_preprocessing(save_preprocessing(tmp_path, "siglip", **changes)), IMAGE_TOKEN_ID, (1, 4, 4)
            )
            .prepare(image)
            .digest
        )

    white, red = Image.new("RGB", (16, 16), "white"), Image.new("RGB", (16, 16), "red")
    assert digest(white) == digest(white.copy())
    assert digest(white) == digest(white.resize((9, 9)))  # the same once it is resized
    wide, high = {"height": 4, "width": 8}, {"height": 8, "width": 4}
    digests = {
        digest(white),
        digest(red),
        digest(white, image_mean=[0.4] * 3),
        digest(white, size=wide),
        digest(white, size=high),
    }
    assert len(digests) == 5


def test_a_text_model_has_no_recipe_and_a_tower_of_another_size_is_refused(tmp_path):
    (tmp_path / "text").mkdir()
    assert read_image_recipe(save_tiny_llama(tmp_path / "text")) is None
    folder = save_tiny_llava(tmp_path, "siglip")
    save_preprocessing(folder, "siglip", size={"height": 20, "width": 20})
    with pytest.raises(ModelFolderError, match="tower sees 16 x 16"):
        read_image_recipe(folder)
    save_preprocessing(folder, "clip", do_center_crop=False)
    with pytest.raises(ModelFolderError, match="different sizes"):
        read_image_recipe(folder)
