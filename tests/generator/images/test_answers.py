"""Conversations with images from their URLs to the tokens of the answer, against `transformers` on the same folder."""

import httpx
import numpy as np
import pytest
import torch
from PIL import Image
from transformers import (
    CLIPImageProcessorPil,
    LlavaForConditionalGeneration,
    Qwen2VLForConditionalGeneration,
)
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from services.generator import LLM
from shared.errors import ImageInvalidError, InvalidRequestError
from tests.fakes.image_files import image_part, saved
from tests.fakes.service_process import ServiceProcess
from tests.fakes.tiny_qwen_vision import save_tiny_qwen2_vl
from tests.fakes.tiny_vision import IMAGE_TOKEN_ID, save_tiny_llava

FAMILIES = {
    "llava": (save_tiny_llava, LlavaForConditionalGeneration, CLIPImageProcessorPil),
    "qwen2_vl": (save_tiny_qwen2_vl, Qwen2VLForConditionalGeneration, Qwen2VLImageProcessorPil),
}
GREEDY = {"max_tokens": 8, "temperature": 0, "ignore_eos": True}
SMALL = {"max_model_len": 128, "kv_cache_memory_bytes": 2**22, "num_threads": 1, "max_num_batched_tokens": 16}
WIDE, TALL = (
    np.random.default_rng(seed).integers(0, 256, size, np.uint8) for seed, size in enumerate([(20, 30, 3), (33, 17, 3)])
)
FIRST = {"role": "user", "content": [image_part(saved(WIDE, "PNG")), {"type": "text", "text": "a?"}]}
OR = {"type": "text", "text": "or"}  # between images, which the reference could not tell apart without
TALK = [
    FIRST,
    {"role": "assistant", "content": "b."},
    {"role": "user", "content": [image_part(saved(TALL, "WEBP", lossless=True), "image/webp"), OR, *FIRST["content"]]},
]
TALK_IMAGES = [WIDE, TALL, WIDE]


@pytest.fixture(scope="module", params=FAMILIES)
def family(request, tmp_path_factory):
    """The family's name, its folder and an engine that serves it."""
    folder = FAMILIES[request.param][0](tmp_path_factory.mktemp(request.param))
    with LLM(str(folder), **SMALL) as llm:
        yield request.param, folder, llm


def reference_answer(name, folder, token_ids, images):
    _, model_class, processor_class = FAMILIES[name]
    model = model_class.from_pretrained(folder, dtype=torch.float32).eval()
    pixels = processor_class.from_pretrained(folder)([Image.fromarray(each) for each in images], return_tensors="pt")
    ids = torch.tensor([token_ids])
    types = {"mm_token_type_ids": (ids == IMAGE_TOKEN_ID).int()} if name == "qwen2_vl" else {}
    options = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    answer = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **pixels, **types, **options)
    return answer[0, len(token_ids) :].tolist()


@pytest.mark.parametrize(("talk", "images"), [([FIRST], [WIDE]), (TALK, TALK_IMAGES)])
def test_the_answer_is_that_of_the_reference_and_so_is_each_choice(family, talk, images):
    name, folder, llm = family
    (answer,) = llm.chat([talk], {**GREEDY, "n": 2})
    expected = reference_answer(name, folder, answer.prompt_token_ids, images)
    assert [choice.token_ids for choice in answer.choices] == [expected, expected]


def test_another_image_makes_another_answer(family):
    _, _, llm = family
    other = {**FIRST, "content": [image_part(saved(255 - WIDE, "PNG")), FIRST["content"][1]]}
    one, two = llm.chat([[FIRST], [other]], GREEDY)
    assert len(one.prompt_token_ids) == len(two.prompt_token_ids)
    assert one.choices[0].token_ids != two.choices[0].token_ids


def test_errors_name_the_part_here_too(family):
    _, _, llm = family
    with pytest.raises(ImageInvalidError, match=r"^messages\.0\.content\.0: "):
        llm.chat([{"role": "user", "content": [image_part(b"hello")]}])
    with pytest.raises(InvalidRequestError, match=r"^prompt: has the placeholder of an image"):
        llm.generate([1, IMAGE_TOKEN_ID])


def test_images_larger_than_the_engines_cache_are_refused(tmp_path):
    save_tiny_llava(tmp_path)
    with LLM(str(tmp_path), **SMALL, encoder_cache_size=20) as llm:
        assert llm.chat([[FIRST]], GREEDY)[0].choices[0].token_ids
        with pytest.raises(ImageInvalidError, match=r"32 rows; the engine holds 20 at once \(--encoder-cache-size\)"):
            llm.chat([TALK], GREEDY)


@pytest.mark.e2e
def test_the_service_says_the_same_across_the_border_of_its_processes(family, tmp_path):
    _, folder, llm = family
    other = [{**FIRST, "content": [image_part(saved(255 - WIDE, "PNG")), FIRST["content"][1]]}]
    talks = [TALK, other, TALK]
    flags = [part for name, value in SMALL.items() for part in ("--" + name.replace("_", "-"), str(value))]
    with ServiceProcess("generator", tmp_path / "log", "--model", str(folder), *flags) as service:
        service.wait_ready()
        answers = [
            httpx.post(f"{service.url}/v1/chat/completions", json={**GREEDY, "messages": talk}, timeout=60).json()
            for talk in talks
        ]
    texts = [answer["choices"][0]["message"]["content"] for answer in answers]
    assert texts == [generation.text for generation in llm.chat(talks, GREEDY)]
    cached = [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers]
    assert cached[:2] == [0, 0]
    assert cached[2] >= 16
