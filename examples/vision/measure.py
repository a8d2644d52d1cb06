"""How many questions about pictures the demo model answers right, decoding greedily; called by `train` at its end."""

from collections.abc import Mapping, Sequence

import torch
from transformers import LlavaForConditionalGeneration, LlavaProcessor

from examples.vision.pictures import Picture, Question

BATCH = 50
MAX_NEW_TOKENS = 12


def accuracies(
    model: LlavaForConditionalGeneration, processor: LlavaProcessor, measured: Mapping[str, Sequence[Picture]]
) -> dict[str, float]:
    """The share of right answers, by kind of picture and question: the answer has the word that must be in it."""
    table = {}
    for name, pictures in measured.items():
        for index in range(len(pictures[0].questions)):
            asked = [(picture, picture.questions[index]) for picture in pictures]
            answers = [
                text
                for start in range(0, len(asked), BATCH)
                for text in _answers(model, processor, asked[start : start + BATCH])
            ]
            right = sum(question.word in answer for (_, question), answer in zip(asked, answers, strict=True))
            table[f"{name}: {asked[0][1].text}"] = right / len(asked)
    return table


@torch.inference_mode()
def _answers(
    model: LlavaForConditionalGeneration, processor: LlavaProcessor, asked: Sequence[tuple[Picture, Question]]
) -> list[str]:
    """Of one question's text about several pictures, so that nothing is padded."""
    text = processor.apply_chat_template(
        [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": asked[0][1].text}]}],
        add_generation_prompt=True,
    )
    inputs = processor(images=[[picture.image] for picture, _ in asked], text=[text] * len(asked), return_tensors="pt")
    ids = model.generate(**inputs.to(model.device), do_sample=False, max_new_tokens=MAX_NEW_TOKENS, pad_token_id=2)
    return processor.batch_decode(ids[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
