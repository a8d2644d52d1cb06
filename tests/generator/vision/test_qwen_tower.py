"""Rows of the Qwen2-VL and Qwen2.5-VL towers against transformers, and the folders that are refused."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import Qwen2_5_VLForConditionalGeneration, Qwen2VLForConditionalGeneration
from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLVisionConfig
from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLVisionConfig
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from services.generator.core.images import PromptImage
from services.generator.images.qwen_recipe import read_qwen_recipe
from services.generator.vision.loader import load_vision_encoder
from services.generator.vision.qwen_config import read_qwen2_5_vision, read_qwen2_vision
from services.generator.vision.qwen_layout import Run, lay_out
from shared.settings.errors import ModelFolderError
from tests.fakes.tiny_qwen_vision import save_tiny_qwen2_5_vl, save_tiny_qwen2_vl
from tests.fakes.tiny_vision import rename_tensors

CPU = torch.device("cpu")
FAMILIES = {
    "qwen2": (save_tiny_qwen2_vl, Qwen2VLForConditionalGeneration),
    "qwen2_5": (save_tiny_qwen2_5_vl, Qwen2_5_VLForConditionalGeneration),
}
# Grids of 5 x 5, 3 x 7, 2 x 3, 5 x 5 and 12 x 4 rows: windows of 2 x 2 divide none of them but the last.
SIZES = ((40, 40), (24, 56), (17, 23), (41, 38), (100, 30))


@pytest.fixture(scope="module", params=FAMILIES)
def model(request, tmp_path_factory):
    save, reference = FAMILIES[request.param]
    folder = save(tmp_path_factory.mktemp(request.param))
    return folder, reference.from_pretrained(folder).eval()


@pytest.fixture(scope="module")
def images():
    random = np.random.default_rng(0)
    return [Image.fromarray(random.integers(0, 256, (height, width, 3), np.uint8)) for height, width in SIZES]


def prepare(folder, images):
    prepared = map(read_qwen_recipe(folder).prepare, images)
    return [PromptImage(0, each.grid, each.digest, each.pixels) for each in prepared]


@torch.inference_mode()
def reference_rows(folder, model, images):
    inputs = Qwen2VLImageProcessorPil.from_pretrained(folder)(images, return_tensors="pt")
    return model.model.visual(inputs["pixel_values"].to(model.dtype), inputs["image_grid_thw"]).pooler_output


def test_rows_equal_transformers(model, images):
    folder, reference = model
    tower = load_vision_encoder(folder, torch.float32, CPU)
    rows = tower(prepare(folder, images))
    expected = reference_rows(folder, reference, images)
    assert [len(each) for each in rows] == [25, 21, 6, 25, 48]
    assert (torch.cat(rows) - expected).abs().max() <= 1e-4 * expected.abs().max()
    assert tower.num_bytes == sum(parameter.nbytes for parameter in reference.model.visual.parameters())


def test_rows_do_not_depend_on_the_images_beside_them(model, images):
    folder, _ = model
    tower, prepared = load_vision_encoder(folder, torch.float32, CPU), prepare(folder, images)
    for together, image in zip(tower(prepared), prepared, strict=True):
        (alone,) = tower([image])
        assert (together - alone).abs().max() <= 1e-5 * alone.abs().max()


def test_half_precision_is_as_near_as_transformers(model, images):
    folder, reference = model
    exact = reference_rows(folder, reference, images)
    half = type(reference).from_pretrained(folder, dtype=torch.bfloat16).eval()
    theirs = (reference_rows(folder, half, images).float() - exact).abs()
    rows = torch.cat(load_vision_encoder(folder, torch.bfloat16, CPU)(prepare(folder, images)))
    ours = (rows.float() - exact).abs()
    assert rows.dtype == torch.bfloat16
    assert ours.max() <= 2 * theirs.max()
    assert ours.mean() <= 1.25 * theirs.mean()


def test_both_namings_of_tensors(model, images, tmp_path):
    folder, _ = model
    expected = load_vision_encoder(folder, torch.float32, CPU)(prepare(folder, images[:1]))
    copy_folder(folder, tmp_path)
    names = load_file(folder / "model.safetensors")
    there, other = (
        ("model.visual.", "visual.") if "model.visual.merger.ln_q.weight" in names else ("visual.", "model.visual.")
    )
    rename_tensors(tmp_path, (f"^{there}", other))
    assert torch.equal(load_vision_encoder(tmp_path, torch.float32, CPU)(prepare(folder, images[:1]))[0], expected[0])


def copy_folder(folder, target):
    for path in folder.glob("*.json"):
        (target / path.name).write_bytes(path.read_bytes())
    (target / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())


def test_missing_misshaped_and_unknown_tensors_are_named(model, tmp_path):
    folder, _ = model
    copy_folder(folder, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    name = next(name for name in tensors if name.endswith("visual.blocks.1.attn.qkv.bias"))

    def load_with(changes):
        kept = {name: tensor for name, tensor in {**tensors, **changes}.items() if tensor is not None}
        save_file(kept, tmp_path / "model.safetensors")
        load_vision_encoder(tmp_path, torch.float32, CPU)

    with pytest.raises(ModelFolderError, match=r"1 tensors are missing, such as .*blocks\.1\.attn\.qkv\.bias"):
        load_with({name: None})
    with pytest.raises(ModelFolderError, match=r"blocks\.1\.attn\.qkv\.bias: \[95\] instead of \[96\]"):
        load_with({name: tensors[name][1:].clone()})
    with pytest.raises(ModelFolderError, match=r"1 tensors are not part of the vision tower, such as .*\.gate\.bias"):
        load_with({name.replace("qkv", "gate"): tensors[name].clone()})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "relu"}, "hidden_act relu is not supported"),
        ({"in_channels": 1}, "other than 3 channels"),
        ({"num_heads": 3}, "gives 3 heads no multiple of 4"),
        ({"patch_size": 5}, "patch_size is 4 in preprocessor_config.json and 5 in config.json"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_type yarn is not supported"),
        ({"hidden_size": 48, "out_hidden_size": 48}, "rows are 48 wide, the decoder's 64"),
    ],
)
def test_other_towers_are_refused(model, tmp_path, changes, message):
    folder, _ = model
    copy_folder(folder, tmp_path)
    config = json.loads((folder / "config.json").read_text())
    config["vision_config"].update(changes)
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelFolderError, match=message):
        load_vision_encoder(tmp_path, torch.float32, CPU)


def test_absent_keys_mean_what_they_mean_in_transformers():
    ours, theirs = read_qwen2_vision({"vision_config": {}}), Qwen2VLVisionConfig()
    assert (ours.width, ours.inner_width) == (theirs.embed_dim, theirs.embed_dim * theirs.mlp_ratio)
    assert (ours.out_width, ours.window, ours.full_layers) == (theirs.hidden_size, None, frozenset())
    ours_2_5, theirs_2_5 = read_qwen2_5_vision({"vision_config": {}}), Qwen2_5_VLVisionConfig()
    assert (ours_2_5.width, ours_2_5.inner_width) == (theirs_2_5.hidden_size, theirs_2_5.intermediate_size)
    assert (ours_2_5.out_width, ours_2_5.window) == (theirs_2_5.out_hidden_size, theirs_2_5.window_size // 28)
    assert ours_2_5.full_layers == frozenset(theirs_2_5.fullatt_block_indexes)
    for config, reference in ((ours, theirs), (ours_2_5, theirs_2_5)):
        assert (config.num_layers, config.num_heads) == (reference.depth, reference.num_heads)
        assert (config.patch_size, config.temporal_patch_size) == (reference.patch_size, reference.temporal_patch_size)
        assert (config.merge_size, config.theta) == (reference.spatial_merge_size, 10_000.0)


def test_windows_of_equal_size_are_neighbours():
    layout = lay_out([(1, 3, 5)], merge_size=1, window=2)
    assert layout.order.tolist() == [0, 1, 5, 6, 2, 3, 7, 8, 4, 9, 10, 11, 12, 13, 14]
    assert layout.windows == (Run(0, 2, 4), Run(8, 3, 2), Run(14, 1, 1))
    assert layout.images == (Run(0, 1, 15),)
    assert layout.coordinates[4].tolist() == [0, 2]
    same = lay_out([(1, 1, 2), (1, 2, 1)], merge_size=2, window=None)
    assert same.windows == same.images == (Run(0, 2, 8),)
    assert same.coordinates[:5].tolist() == [[0, 0], [0, 1], [1, 0], [1, 1], [0, 2]]
