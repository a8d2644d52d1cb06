"""Small random Qwen2-VL and Qwen2.5-VL models, saved by transformers with their image processor; no tokenizer."""

from pathlib import Path

import torch
from transformers import (
    PreTrainedModel,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
)
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

IMAGE_TOKEN_ID = 3
BLOCK = 8
"""Side in pixels of what becomes one row."""
_VISION = {
    "depth": 3,
    "num_heads": 2,
    "patch_size": 4,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "initializer_range": 0.2,
}


def save_tiny_qwen2_vl(folder: Path, vocab_size: int = 128, image_token_id: int = IMAGE_TOKEN_ID) -> PreTrainedModel:
    """A Qwen2-VL whose tower has 3 layers and a width of 32."""
    vision = {**_VISION, "embed_dim": 32, "hidden_size": 64, "mlp_ratio": 2}
    config = Qwen2VLConfig(
        text_config=_text(vocab_size), vision_config=vision, **_tokens(image_token_id), tie_word_embeddings=False
    )
    return _save(Qwen2VLForConditionalGeneration, config, folder)


def save_tiny_qwen2_5_vl(folder: Path, vocab_size: int = 128, image_token_id: int = IMAGE_TOKEN_ID) -> PreTrainedModel:
    """A Qwen2.5-VL likewise; windows of 2 x 2 rows in all layers but the second."""
    vision = {
        **_VISION,
        "hidden_size": 32,
        "intermediate_size": 48,
        "out_hidden_size": 64,
        "window_size": 2 * BLOCK,
        "fullatt_block_indexes": [1],
    }
    config = Qwen2_5_VLConfig(
        text_config=_text(vocab_size), vision_config=vision, **_tokens(image_token_id), tie_word_embeddings=False
    )
    return _save(Qwen2_5_VLForConditionalGeneration, config, folder)


def _text(vocab_size: int) -> dict[str, object]:
    return {
        "vocab_size": vocab_size,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [2, 3, 3]},
        "initializer_range": 0.2,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def _tokens(image_token_id: int) -> dict[str, int]:
    names = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
    return {name: image_token_id + place for place, name in enumerate(names)}


def _save(kind: type[PreTrainedModel], config: Qwen2VLConfig | Qwen2_5_VLConfig, folder: Path) -> PreTrainedModel:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = kind(config).eval()
        for parameter in model.parameters():
            if parameter.dim() == 1:  # norms and biases, which would be ones and zeros
                parameter.data += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    size = {"shortest_edge": 4 * BLOCK**2, "longest_edge": 48 * BLOCK**2}
    Qwen2VLImageProcessorPil(patch_size=4, merge_size=2, temporal_patch_size=2, size=size).save_pretrained(folder)
    return model
