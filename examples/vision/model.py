"""The demo model: a small SigLIP tower and a projector, both new, in front of the embedded language model, which stays as it is.

An ordinary `LlavaForConditionalGeneration` of transformers with an ordinary processor. The placeholder is a token that the embedded
model's vocabulary has and its chats never use, so that no embedding is added.
"""

from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    SiglipImageProcessorPil,
    SiglipVisionConfig,
)

IMAGE_TOKEN = "<empty_output>"
PATCH = 8
TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n"
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' }}{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}{% if part['type'] == 'image' %}{{ '" + IMAGE_TOKEN + "' }}"
    "{% elif part['type'] == 'text' %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""That of the embedded model, and a placeholder for each image part; texts come out the same."""


def make_processor(text_model: Path, side: int) -> LlavaProcessor:
    """Images to pixels, texts to ids."""
    images = SiglipImageProcessorPil(size={"height": side, "width": side}, resample=3)
    return LlavaProcessor(
        image_processor=images,
        tokenizer=AutoTokenizer.from_pretrained(text_model),
        patch_size=PATCH,
        vision_feature_select_strategy="full",
        num_additional_image_tokens=0,
        image_token=IMAGE_TOKEN,
        chat_template=TEMPLATE,
    )


def make_model(text_model: Path, processor: LlavaProcessor, side: int) -> LlavaForConditionalGeneration:
    """The embedded model's decoder, frozen, behind a tower and a projector with random weights."""
    decoder = AutoModelForCausalLM.from_pretrained(text_model, dtype=torch.float32)
    vision = SiglipVisionConfig(
        hidden_size=128,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        image_size=side,
        patch_size=PATCH,
        vision_use_head=False,
    )
    config = LlavaConfig(
        vision_config=vision,
        text_config=decoder.config,
        image_token_index=processor.tokenizer.convert_tokens_to_ids(IMAGE_TOKEN),
        projector_hidden_act="gelu",
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
        image_seq_length=(side // PATCH) ** 2,
        tie_word_embeddings=True,
    )
    model = LlavaForConditionalGeneration(config)
    model.model.language_model.load_state_dict(decoder.model.state_dict())
    model.tie_weights()
    model.requires_grad_(False)
    for part in new_parts(model):
        part.requires_grad_(True)
    return model


def new_parts(model: LlavaForConditionalGeneration) -> list[torch.nn.Module]:
    """What is learnt."""
    return [model.model.vision_tower, model.model.multi_modal_projector]


def image_rows(model: LlavaForConditionalGeneration, pixels: torch.Tensor) -> torch.Tensor:
    """[B, 3, side, side] to the rows that stand in the prompt, [B, R, C]."""
    features = model.model.vision_tower(pixels, output_hidden_states=True).hidden_states[-1]
    return model.model.multi_modal_projector(features)


def save_vision(model: LlavaForConditionalGeneration, processor: LlavaProcessor, folder: Path) -> None:
    """Write what is new, named as in a whole folder of the model and in bf16, with its config and template; no decoder."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    whole = model.state_dict()
    names = [name for name in whole if "language_model" not in name and "lm_head" not in name]
    learnt = {name: whole[name].to(torch.bfloat16).contiguous() for name in names}
    save_file(learnt, folder / "vision.safetensors", metadata={"format": "pt"})
    model.config.architectures = ["LlavaForConditionalGeneration"]
    model.config.text_config.name_or_path = ""
    model.config.save_pretrained(folder)
    processor.save_pretrained(folder)
    (folder / "chat_template.jinja").write_text(
        TEMPLATE + "\n", encoding="utf-8"
    )  # templates lose one line break at their end
    for name in ("tokenizer.json", "tokenizer_config.json"):  # those of the language model
        (folder / name).unlink()
