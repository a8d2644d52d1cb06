"""The vision encoder of LLaVA models: the rows that transformers' projector gives, and the folders that are refused."""

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import CLIPImageProcessorPil, LlavaForConditionalGeneration, SiglipImageProcessorPil

from services.generator.core.images import PromptImage
from services.generator.images.recipes import RECIPES, read_image_recipe
from services.generator.vision.loader import LOADERS, load_vision_encoder
from shared.modeling.vision_families import VISION_FAMILIES
from shared.settings.errors import ModelFolderError
from tests.fakes.tiny_vision import AS_BEFORE_5, AS_SINCE_4_52, rename_tensors, save_tiny_llava
from tests.generator.conftest import save_tiny_llama

CPU = torch.device("cpu")
PROCESSORS = {"clip": CLIPImageProcessorPil, "siglip": SiglipImageProcessorPil}
CASES = {
    "clip": ("clip", {}),
    "clip_whole_rows": ("clip", {"vision_feature_select_strategy": "full"}),
    "clip_first_layer": ("clip", {"vision_feature_layer": 1}),
    "clip_gelu": ("clip", {"vision": {"hidden_act": "gelu"}, "projector_hidden_act": "gelu_pytorch_tanh"}),
    "clip_rest_of_a_patch": ("clip", {"vision": {"patch_size": 5, "layer_norm_eps": 0.1}}),
    "siglip": ("siglip", {}),
    "siglip_without_first": ("siglip", {"vision_feature_select_strategy": "default"}),
    "siglip_last_layer": ("siglip", {"vision_feature_layer": -1, "multimodal_projector_bias": False}),
    "siglip_two_layers": ("siglip", {"vision_feature_layer": [-2, 1]}),
    "siglip_with_its_pooling": ("siglip", {"vision": {"vision_use_head": True}}),
}


def noise(seed):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (20 + seed, 30, 3), np.uint8))


def prompt_images(folder, images):
    recipe = read_image_recipe(folder)
    prepared = [recipe.prepare(image) for image in images]
    return [PromptImage(0, each.grid, each.digest, each.pixels) for each in prepared]


def reference_rows(folder, tower, images, dtype=torch.float32):
    model = LlavaForConditionalGeneration.from_pretrained(folder, dtype=dtype).eval()
    values = PROCESSORS[tower].from_pretrained(folder)(images=images, return_tensors="pt")["pixel_values"]
    with torch.inference_mode():
        return list(model.get_image_features(pixel_values=values.to(dtype)).pooler_output)


def error(ours, theirs):
    return max((a.float() - b.float()).abs().max().item() for a, b in zip(ours, theirs, strict=True))


def largest(rows):
    return max(row.abs().max().item() for row in rows)


@pytest.mark.parametrize("case", CASES)
def test_rows_are_those_of_the_reference(tmp_path, case):
    tower, changes = CASES[case]
    folder = save_tiny_llava(tmp_path, tower, **changes)
    images = [noise(seed) for seed in range(3)]
    inputs, theirs = prompt_images(folder, images), reference_rows(folder, tower, images)
    encoder = load_vision_encoder(folder, torch.float32, CPU)
    ours = encoder(inputs)
    assert [tuple(row.shape) for row in ours] == [(image.num_rows, 64) for image in inputs]
    assert error(ours, theirs) <= 1e-4 * largest(theirs)
    alone = [encoder([image])[0] for image in inputs]
    assert error(alone, ours) <= 1e-5 * largest(theirs)  # whatever else is there
    assert error(ours[:1], theirs[1:2]) > 0.1 * largest(theirs)  # else the test would not see a wrong image


@pytest.mark.parametrize("tower", PROCESSORS)
def test_rows_in_bfloat16_are_as_close_as_the_reference_s(tmp_path, tower):
    folder = save_tiny_llava(tmp_path, tower)
    images = [noise(seed) for seed in range(4)]
    exact = reference_rows(folder, tower, images)
    theirs = reference_rows(folder, tower, images, torch.bfloat16)
    ours = load_vision_encoder(folder, torch.bfloat16, CPU)(prompt_images(folder, images))
    assert ours[0].dtype == torch.bfloat16
    assert error(ours, exact) <= 2 * error(theirs, exact)
    means = [
        torch.stack([(a.float() - b).abs().mean() for a, b in zip(rows, exact, strict=True)]).mean()
        for rows in (ours, theirs)
    ]
    assert means[0] <= 1.25 * means[1]


@pytest.mark.parametrize("renamings", [AS_SINCE_4_52, AS_BEFORE_5], ids=["since_4_52", "before_5"])
def test_other_names_of_the_same_tensors(tmp_path, renamings):
    folder = save_tiny_llava(tmp_path)
    inputs = prompt_images(folder, [noise(1)])
    before = load_vision_encoder(folder, torch.float32, CPU)(inputs)[0]
    rename_tensors(folder, *renamings)
    assert torch.equal(load_vision_encoder(folder, torch.float32, CPU)(inputs)[0], before)


def change_tensors(folder, change):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


LAYER = "vision_tower.encoder.layers.1.mlp.fc1"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda t: t.pop(f"{LAYER}.bias"), rf"missing, such as {LAYER}\.bias"),
        (
            lambda t: t.update({f"{LAYER}.weight": torch.zeros(48, 31)}),
            rf"{LAYER}\.weight: \[48, 31\] instead of \[48, 32\]",
        ),
        (
            lambda t: t.update({f"{LAYER}.scale": torch.zeros(1)}),
            rf"not part of the vision tower, such as {LAYER}\.scale",
        ),
        (
            lambda t: t.update({"multi_modal_projector.linear_3.weight": torch.zeros(1)}),
            r"multi_modal_projector\.linear_3\.weight",
        ),
        (lambda t: t.update({"vision_tower.encoder.layers.3.mlp.fc1.bias": torch.zeros(1)}), r"layers\.3"),
        (lambda t: t.update({f"{LAYER}.bias": torch.zeros(48, dtype=torch.int8)}), r"precision that is not supported"),
    ],
)
def test_missing_misshaped_and_unknown_tensors_are_named(tmp_path, change, named):
    folder = save_tiny_llava(tmp_path)
    change_tensors(folder, change)
    with pytest.raises(ModelFolderError, match=named):
        load_vision_encoder(folder, torch.float32, CPU)


def test_weights_are_counted_and_layers_nobody_sees_are_not_loaded(tmp_path):
    folder = save_tiny_llava(tmp_path)
    wanted = (
        "vision_tower.embeddings",
        "vision_tower.pre",
        "vision_tower.encoder.layers.0",
        "vision_tower.encoder.layers.1",
        "multi",
    )
    tensors = load_file(folder / "model.safetensors")
    num_bytes = sum(tensor.nbytes for name, tensor in tensors.items() if name.startswith(wanted))
    assert load_vision_encoder(folder, torch.float32, CPU).num_bytes == num_bytes


def test_a_text_model_has_no_encoder_and_every_family_has_all_its_rows(tmp_path):
    assert load_vision_encoder(save_tiny_llama(tmp_path), torch.float32, CPU) is None
    assert RECIPES.keys() == LOADERS.keys() == VISION_FAMILIES.keys()
