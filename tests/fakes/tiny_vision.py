"""Tiny random LLaVA models made by the reference library: a CLIP or SigLIP tower, a projector and the tiny Llama.

Used by tests of image recipes, vision encoder, engine and API. Nothing is left at a value that hides a slip.
"""

import re
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as FastTokenizer
from transformers import (
    CLIPImageProcessorPil,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    SiglipImageProcessorPil,
    SiglipVisionConfig,
)

from tests.shared.modeling.tiny_decoder import TINY, leave_nothing_at_its_default

Tower = Literal["clip", "siglip"]

IMAGE_SIZE, PATCH_SIZE = 16, 4
NUM_ROWS = 16
"""Rows of an image: one per patch."""

IMAGE_TOKEN, IMAGE_TOKEN_ID = "<image>", 259

CHAT_TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: "
    "{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{% if part.type == 'image' %}<image>{% else %}{{ part.text }}{% endif %}{% endfor %}"
    "{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)

_VISION = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "image_size": IMAGE_SIZE,
    "patch_size": PATCH_SIZE,
}
# A SigLIP tower has no class row, which is what "default" drops.
_STRATEGIES = {"clip": "default", "siglip": "full"}


def save_tiny_llava(
    folder: Path,
    tower: Tower = "clip",
    *,
    text: dict[str, Any] | None = None,
    vision: dict[str, Any] | None = None,
    **changes: Any,
) -> Path:
    """Write a random LLaVA whole: weights, tokenizer, chat template and preprocessing.

    Args:
        text: changes of the decoder's config; `vision` of the tower's, `changes` of the outer one.
    """
    torch.manual_seed(0)
    model = LlavaForConditionalGeneration(_config(tower, text or {}, vision or {}, changes))
    leave_nothing_at_its_default(model)
    for name, parameter in model.model.named_parameters():
        if "language_model" not in name and not name.endswith("bias") and "norm" not in name:
            torch.nn.init.normal_(parameter, std=0.2)  # so that images differ and matter
    model.save_pretrained(folder)
    save_preprocessing(folder, tower)
    save_image_tokenizer(folder)
    return folder


def _config(tower: Tower, text: dict[str, Any], vision: dict[str, Any], changes: dict[str, Any]) -> LlavaConfig:
    if tower == "clip":
        vision_config = CLIPVisionConfig(**{**_VISION, **vision})
    else:
        vision_config = SiglipVisionConfig(**{**_VISION, "vision_use_head": False, **vision})
    outer = {"image_token_index": IMAGE_TOKEN_ID, "vision_feature_select_strategy": _STRATEGIES[tower]}
    text_config = LlamaConfig(**{**TINY, "vocab_size": IMAGE_TOKEN_ID + 1, **text})
    return LlavaConfig(vision_config=vision_config, text_config=text_config, **{**outer, **changes})


def save_preprocessing(folder: Path, tower: Tower, **changes: Any) -> Path:
    """`preprocessor_config.json` as each tower's processor writes it."""
    square = {"height": IMAGE_SIZE, "width": IMAGE_SIZE}
    if tower == "clip":
        processor = CLIPImageProcessorPil(**{"size": {"shortest_edge": IMAGE_SIZE}, "crop_size": square, **changes})
    else:
        processor = SiglipImageProcessorPil(**{"size": square, **changes})
    processor.save_pretrained(folder)
    return folder


def save_image_tokenizer(folder: Path) -> None:
    """One token per byte, then <s>, </s>, <pad> and the image's placeholder."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    fast = FastTokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    fast.add_special_tokens([AddedToken(text, special=True) for text in ("<s>", "</s>", "<pad>", IMAGE_TOKEN)])
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    fast.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")


def rename_tensors(folder: Path, *renamings: tuple[str, str]) -> None:
    """Rewrite `model.safetensors` in place with the first of `renamings` (pattern, replacement) that fits each name."""
    path = folder / "model.safetensors"
    renamed = {}
    for name, tensor in load_file(path).items():
        pattern, replacement = next((pair for pair in renamings if re.match(pair[0], name)), ("^", ""))
        renamed[re.sub(pattern, replacement, name)] = tensor.clone()
    save_file(renamed, path, metadata={"format": "pt"})


AS_SINCE_4_52 = (
    (r"^language_model\.model\.", "model.language_model."),
    (r"^language_model\.lm_head\.", "lm_head."),
    (r"^(?=vision_tower|multi_modal)", "model."),
)
"""Renamings to the names of the modules themselves, which some folders have."""

AS_BEFORE_5 = ((r"^vision_tower\.", "vision_tower.vision_model."),)
"""Renamings to the names of older folders, whose towers have one more level."""
