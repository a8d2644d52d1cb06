"""What a LLaVA folder's config.json says of its tower: as in transformers, published folders included, and what is refused."""

import pytest
from transformers import CLIPVisionConfig, SiglipVisionConfig

from services.generator.images.llava_config import read_llava_config
from shared.settings.errors import ModelFolderError

# The parts of config.json that matter here, of llava-hf/llava-1.5-7b-hf and llava-hf/llava-interleave-qwen-0.5b-hf.
LLAVA_15 = {
    "image_token_index": 32000,
    "projector_hidden_act": "gelu",
    "vision_config": {
        "hidden_size": 1024,
        "image_size": 336,
        "intermediate_size": 4096,
        "model_type": "clip_vision_model",
        "num_attention_heads": 16,
        "num_hidden_layers": 24,
        "patch_size": 14,
    },
    "vision_feature_layer": -2,
    "vision_feature_select_strategy": "default",
}
INTERLEAVE = {
    "image_token_index": 151646,
    "projector_hidden_act": "gelu",
    "vision_config": {
        "hidden_size": 1152,
        "image_size": 384,
        "intermediate_size": 4304,
        "model_type": "siglip_vision_model",
        "num_attention_heads": 16,
        "num_hidden_layers": 26,
        "patch_size": 14,
        "vision_use_head": False,
    },
    "vision_feature_layer": -1,
    "vision_feature_select_strategy": "full",
}


@pytest.mark.parametrize(
    ("config", "grid", "num_layers", "is_clip"),
    [(LLAVA_15, (1, 24, 24), 23, True), (INTERLEAVE, (1, 27, 27), 26, False)],
    ids=["llava-1.5", "llava-interleave"],
)
def test_published_folders(config, grid, num_layers, is_clip):
    ours = read_llava_config(config)
    assert ours.grid == grid  # 576 and 729 rows, as their papers say
    assert ours.num_layers == num_layers
    assert ours.kind.has_class_row is ours.drops_first_row is is_clip
    assert (ours.activation, ours.norm_eps) == (("quick_gelu", 1e-5) if is_clip else ("gelu_pytorch_tanh", 1e-6))
    assert ours.image_token_id == config["image_token_index"]


@pytest.mark.parametrize("make", [CLIPVisionConfig, SiglipVisionConfig])
def test_absent_keys_mean_what_they_mean_in_transformers(make):
    theirs, ours = make(), read_llava_config({"vision_config": {"model_type": make.model_type}})
    assert (ours.hidden_size, ours.intermediate_size) == (theirs.hidden_size, theirs.intermediate_size)
    assert (ours.num_stored_layers, ours.num_heads) == (theirs.num_hidden_layers, theirs.num_attention_heads)
    assert (ours.image_size, ours.patch_size) == (theirs.image_size, theirs.patch_size)
    assert (ours.activation, ours.norm_eps) == (theirs.hidden_act, theirs.layer_norm_eps)


@pytest.mark.parametrize(
    ("outer", "vision", "named"),
    [
        ({}, {"model_type": "pixtral"}, "model_type pixtral"),
        ({}, {"num_channels": 1}, "num_channels"),
        ({}, {"num_attention_heads": 7}, "multiple of num_attention_heads"),
        ({}, {"hidden_act": "relu6"}, "hidden_act relu6"),
        ({}, {"image_size": [336, 336]}, "image_size"),
        ({"projector_hidden_act": "silu"}, {}, "projector_hidden_act silu"),
        ({"vision_feature_layer": -26}, {}, "vision_feature_layer -26"),
        ({"vision_feature_layer": []}, {}, r"vision_feature_layer \[\]"),
        ({"vision_feature_layer": "last"}, {}, "vision_feature_layer last"),
        ({"vision_feature_select_strategy": "cls"}, {}, "vision_feature_select_strategy cls"),
        ({"vision_config": None}, {}, "no vision_config"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(outer, vision, named):
    config = {**LLAVA_15, "vision_config": {**LLAVA_15["vision_config"], **vision}, **outer}
    with pytest.raises(ModelFolderError, match=named):
        read_llava_config(config)
