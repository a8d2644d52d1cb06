"""Tiny random Qwen2-VL and Qwen2.5-VL models made by the reference library; tokenizer and template are those of the tiny LLaVA.

Used by tests of the recipe, of the towers, of the engine and of the API. Nothing is left at a value that hides a slip.
"""

from pathlib import Path
from typing import Any

import torch
from transformers import (
    PreTrainedModel,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
)
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from tests.fakes.tiny_vision import IMAGE_TOKEN_ID, save_image_tokenizer
from tests.shared.modeling.tiny_decoder import TINY, leave_nothing_at_its_default

BLOCK = 8
"""Side, in pixels, of what becomes one row."""
MAX_ROWS = 48
"""Of one image."""

_PATCH_SIZE, _MERGE_SIZE, _FRAMES = 4, 2, 2
_VISION = {
    "depth": 3,
    "num_heads": 2,
    "patch_size": _PATCH_SIZE,
    "spatial_merge_size": _MERGE_SIZE,
    "temporal_patch_size": _FRAMES,
    "initializer_range": 0.2,
}
_ROPE = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [2, 3, 3]}


def save_tiny_qwen2_vl(folder: Path, **vision: Any) -> Path:
    """Write a random Qwen2-VL whole: weights, tokenizer, chat template and preprocessing; `vision` changes its tower."""
    tower = {**_VISION, "embed_dim": 32, "hidden_size": TINY["hidden_size"], "mlp_ratio": 2, **vision}
    return _save(Qwen2VLForConditionalGeneration, Qwen2VLConfig(vision_config=tower, **_outer()), folder)


def save_tiny_qwen2_5_vl(folder: Path, **vision: Any) -> Path:
    """A Qwen2.5-VL likewise; windows of 2 x 2 rows in all layers but the second."""
    widths = {"hidden_size": 32, "intermediate_size": 48, "out_hidden_size": TINY["hidden_size"]}
    tower = {**_VISION, **widths, "window_size": 2 * BLOCK, "fullatt_block_indexes": [1], **vision}
    return _save(Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLConfig(vision_config=tower, **_outer()), folder)


def _outer() -> dict[str, Any]:
    return {
        "text_config": {**TINY, "vocab_size": IMAGE_TOKEN_ID + 1, "rope_parameters": _ROPE},
        "image_token_id": IMAGE_TOKEN_ID,
    }


def _save(kind: type[PreTrainedModel], config: Qwen2VLConfig | Qwen2_5_VLConfig, folder: Path) -> Path:
    torch.manual_seed(0)
    model = kind(config)
    leave_nothing_at_its_default(model)
    torch.nn.init.uniform_(model.model.visual.merger.ln_q.weight, 0.5, 1.5)
    model.save_pretrained(folder)
    size = {"shortest_edge": 4 * BLOCK**2, "longest_edge": MAX_ROWS * BLOCK**2}
    processor = Qwen2VLImageProcessorPil(
        patch_size=_PATCH_SIZE, merge_size=_MERGE_SIZE, temporal_patch_size=_FRAMES, size=size
    )
    processor.save_pretrained(folder)
    save_image_tokenizer(folder)
    return folder
