"""Logits of whole Qwen2-VL and Qwen2.5-VL models, put together from our pieces, against transformers."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional
from transformers import (
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
)
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from services.generator.core.images import PromptImage
from services.generator.core.rope_positions import rope_positions
from services.generator.images.recipes import read_image_recipe
from services.generator.vision.loader import load_vision_encoder
from shared.modeling.config import read_decoder_config
from shared.modeling.decoder import DecoderOps, decoder_forward, linear
from shared.modeling.decoder_loader import load_decoder
from shared.modeling.rope import apply_rope, rope_table, sectioned_rows
from tests.fakes.tiny_qwen_vision import save_tiny_qwen2_5_vl, save_tiny_qwen2_vl

CPU = torch.device("cpu")
FAMILIES = {
    "qwen2": (save_tiny_qwen2_vl, Qwen2VLForConditionalGeneration),
    "qwen2_5": (save_tiny_qwen2_5_vl, Qwen2_5_VLForConditionalGeneration),
}
# Numbers are tokens of text, pairs are height and width of an image.
PROMPTS = {
    "first": [(40, 24), 9],
    "middle": [5, (24, 56), 8],
    "last": [6, (40, 40)],
    "several": [(17, 23), 3, (40, 40), 1, (60, 24), 7],
    "text": [12],
}


class CausalOps(DecoderOps):
    """One sequence without a cache, its embeddings given."""

    def __init__(self, config, embedded, rows):
        self.config, self.embedded, self.rows = config, embedded, rows

    def embed(self, embedding, token_ids):
        return self.embedded

    def project(self, layer, group, projection, x):
        return linear(projection, x)

    def attend(self, index, layer, qkv):
        num_q, num_kv = self.config.num_heads, self.config.num_kv_heads
        heads = qkv.view(len(qkv), -1, self.config.head_dim)
        qk, v = heads.split([num_q + num_kv, num_kv], dim=1)
        q, k = apply_rope(qk, self.rows).split([num_q, num_kv], dim=1)
        q, k, v = (each.transpose(0, 1)[None] for each in (q, k, v))
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return attended[0].transpose(0, 1).flatten(1)


@pytest.fixture(scope="module", params=FAMILIES)
def model(request, tmp_path_factory):
    save, reference = FAMILIES[request.param]
    folder = save(tmp_path_factory.mktemp(request.param))
    return folder, load_vision_encoder(folder, torch.float32, CPU), reference.from_pretrained(folder).eval()


def build_prompt(recipe, parts):
    """Token ids, our images, and the images as they came."""
    random = np.random.default_rng(0)
    token_ids, ours, pictures = [], [], []
    for part in parts:
        if isinstance(part, int):
            token_ids += random.integers(0, 256, part).tolist()
            continue
        pictures.append(Image.fromarray(random.integers(0, 256, (*part, 3), np.uint8)))
        prepared = recipe.prepare(pictures[-1])
        ours.append(PromptImage(len(token_ids), prepared.grid, prepared.digest, prepared.pixels))
        token_ids += [recipe.image_token_id] * ours[-1].num_rows
    return token_ids, ours, pictures


def our_logits(folder, tower, token_ids, images):
    config = read_decoder_config(json.loads((folder / "config.json").read_text()))
    weights = load_decoder(folder, config, torch.float32, CPU)
    embedded = functional.embedding(torch.tensor(token_ids), weights.embedding)
    for image, rows in zip(images, tower(images) if images else [], strict=True):
        embedded[image.position : image.end] = rows
    positions, _ = rope_positions(len(token_ids), images)
    table = rope_table(config.rope, config.context_len, torch.float32, CPU)
    ops = CausalOps(config, embedded, sectioned_rows(table, torch.from_numpy(positions), config.rope.sections))
    return decoder_forward(weights, config, ops, torch.tensor(token_ids)) @ weights.head.T


@torch.inference_mode()
def reference_logits(folder, model, token_ids, pictures):
    ids = torch.tensor([token_ids])
    if not pictures:
        return model(ids).logits[0]
    inputs = Qwen2VLImageProcessorPil.from_pretrained(folder)(pictures, return_tensors="pt")
    return model(ids, mm_token_type_ids=(ids == model.config.image_token_id).int(), **inputs).logits[0]


@pytest.mark.parametrize("parts", PROMPTS.values(), ids=PROMPTS)
def test_logits_equal_transformers(model, parts):
    folder, tower, reference = model
    token_ids, images, pictures = build_prompt(read_image_recipe(folder), parts)
    ours = our_logits(folder, tower, token_ids, images)
    theirs = reference_logits(folder, reference, token_ids, pictures)
    assert (ours - theirs).abs().max() <= 1e-4 * theirs.abs().max()


def test_flat_config_is_read_as_the_nested_one(model):
    """Hub folders keep the decoder's keys at the top, with `rope_scaling` and the older dtype's name."""
    content = json.loads((model[0] / "config.json").read_text())
    text = content["text_config"]
    parameters = text.pop("rope_parameters")
    flat = {key: value for key, value in content.items() if key not in ("text_config", "dtype")} | {
        **{key: value for key, value in text.items() if key not in ("model_type", "layer_types", "dtype")},
        "rope_theta": parameters["rope_theta"],
        "rope_scaling": {"type": "mrope", "mrope_section": parameters["mrope_section"]},
        "torch_dtype": "float32",
        "model_type": content["model_type"],
    }
    text["rope_parameters"] = parameters
    assert read_decoder_config(flat) == read_decoder_config(content)
    assert read_decoder_config(flat).rope.sections == (2, 3, 3)


@pytest.mark.parametrize("kind", [Qwen2VLConfig, Qwen2_5_VLConfig])
def test_absent_keys_of_the_decoder_mean_what_they_mean_in_transformers(kind):
    ours = read_decoder_config({"architectures": [f"{kind.__name__.removesuffix('Config')}ForConditionalGeneration"]})
    theirs = kind().text_config
    assert (ours.hidden_size, ours.intermediate_size) == (theirs.hidden_size, theirs.intermediate_size)
    assert (ours.num_layers, ours.vocab_size) == (theirs.num_hidden_layers, theirs.vocab_size)
    assert (ours.num_heads, ours.num_kv_heads) == (theirs.num_attention_heads, theirs.num_key_value_heads)
    assert (ours.context_len, ours.norm_eps) == (theirs.max_position_embeddings, theirs.rms_norm_eps)
    assert (ours.windows, ours.has_tied_head) == ((None,), False)
    assert (ours.rope.theta, ours.rope.sections) == (theirs.default_theta, (16, 24, 24))
