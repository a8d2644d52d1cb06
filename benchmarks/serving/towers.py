"""Writes models for `benchmarks.serving.images`: SigLIP towers with random weights, as LLaVA joins them to the embedded decoder.

They say nothing sensible of an image; what they cost is that of towers of real size.
"""

import shutil
from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    SiglipImageProcessorPil,
    SiglipVisionConfig,
)

DECODER = Path("models/smollm2-135m-instruct")
TOWERS = {
    "base": {"image_size": 224},
    "large": {
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "image_size": 256,
    },
}
"""SigLIP-B/16-224, with 196 rows and 86 million parameters, and SigLIP-L/16-256, with 256 and 304 million."""

PLACEHOLDER, PLACEHOLDER_ID = "<empty_output>", 16
"""A special token of the decoder that no text has."""

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
    "{% if part.type == 'image' %}" + PLACEHOLDER + "{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_model(folder: Path, tower: str) -> None:
    """The whole folder: weights, tokenizer, template and preprocessing; 0.9 or 1.8 GB."""
    image_size = TOWERS[tower]["image_size"]
    config = LlavaConfig(
        vision_config=SiglipVisionConfig(**TOWERS[tower], vision_use_head=False),
        text_config=LlamaConfig.from_pretrained(DECODER),
        image_token_index=PLACEHOLDER_ID,
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
    )
    torch.manual_seed(0)
    model = LlavaForConditionalGeneration(config)
    decoder = AutoModelForCausalLM.from_pretrained(DECODER, dtype=torch.float32)
    model.model.language_model.load_state_dict(decoder.model.state_dict())
    model.save_pretrained(folder)
    SiglipImageProcessorPil(size={"height": image_size, "width": image_size}).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(DECODER / name, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
