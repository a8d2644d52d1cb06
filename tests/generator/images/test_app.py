"""A folder of the LLaVA layout through the composition root: prompts as `transformers`' processor makes them, and larger bodies."""

import asyncio

import httpx
import numpy as np
import pytest
from PIL import Image
from transformers import CLIPImageProcessorPil, LlavaProcessor, PreTrainedTokenizerFast

from services.generator.app import build_app, build_service
from services.generator.settings import IMAGE_BODY_BYTES, GeneratorSettings
from shared.contracts.conversation import ChatMessage, TemplateFields
from shared.errors import ImageInvalidError, InvalidRequestError
from shared.http.lifecycle import Lifecycle
from shared.settings.base import load_settings
from tests.fakes.fake_engine import FakeEngine
from tests.fakes.image_files import image_part, saved
from tests.fakes.tiny_vision import IMAGE_TOKEN, PATCH_SIZE, save_tiny_llava


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tiny_llava(tmp_path_factory.mktemp("tiny-llava"))


def test_a_prompt_is_that_of_the_reference(folder):
    pixels = [np.random.default_rng(seed).integers(0, 256, (20, 30, 3), np.uint8) for seed in (1, 2)]
    service = build_service(GeneratorSettings(model=str(folder)), FakeEngine(lambda *_: []))
    content = [image_part(saved(pixels[0], "PNG")), {"type": "text", "text": "or"}, image_part(saved(pixels[1], "PNG"))]
    message = ChatMessage.model_validate({"role": "user", "content": content})
    prompt = asyncio.run(service.prompts.from_chat([message], TemplateFields()))

    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    tokenizer.image_token = IMAGE_TOKEN
    processor = LlavaProcessor(
        CLIPImageProcessorPil.from_pretrained(folder),
        tokenizer,
        patch_size=PATCH_SIZE,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
    )
    text = f"user: {IMAGE_TOKEN}or{IMAGE_TOKEN}assistant:"
    expected = processor(images=[Image.fromarray(each) for each in pixels], text=text)
    assert prompt.token_ids == expected["input_ids"][0]
    assert [image.num_rows for image in prompt.images] == [16, 16]
    assert prompt.images[0].digest != prompt.images[1].digest
    assert service.card.takes_images


def test_made_up_weights_have_no_tower_and_say_so(folder):
    service = build_service(GeneratorSettings(model=str(folder), load_format="dummy"), FakeEngine(lambda *_: []))
    assert not service.card.takes_images
    message = ChatMessage.model_validate({"role": "user", "content": [image_part(b"")]})
    with pytest.raises(InvalidRequestError, match="this model takes no images"):
        asyncio.run(service.prompts.from_chat([message], TemplateFields()))


def test_the_limits_are_those_of_the_flags(folder):
    settings = GeneratorSettings(model=str(folder), limit_images_per_prompt=1, max_image_bytes=400, max_image_pixels=50)
    prompts = build_service(settings, FakeEngine(lambda *_: [])).prompts

    def refusal(*parts):
        message = ChatMessage.model_validate({"role": "user", "content": list(parts)})
        with pytest.raises(ImageInvalidError) as error:
            asyncio.run(prompts.from_chat([message], TemplateFields()))
        return error.value.message

    assert "2 images; at most 1" in refusal(image_part(), image_part())
    assert "at most 400 are taken" in refusal(image_part(b"x" * 401))
    assert "6x9 pixels; at most 50" in refusal(image_part(saved(np.zeros((9, 6), np.uint8), "PNG")))


def test_a_model_that_takes_images_reads_larger_bodies_unless_told_otherwise(folder, tiny_llama):
    body = b'{"messages":"' + b"a" * (8 * 2**20) + b'"}'

    def code_of(**settings):
        app = build_app(GeneratorSettings(**settings), Lifecycle())

        async def send():
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
                return await client.post("/v1/chat/completions", content=body)

        return asyncio.run(send()).json()["error"]["code"]

    assert code_of(model=str(folder)) != "payload_too_large"
    assert code_of(model=str(folder), max_body_bytes=2**20) == "payload_too_large"
    assert code_of(model=str(tiny_llama)) == "payload_too_large"


def test_a_limit_of_bodies_that_was_given_stays(monkeypatch):
    assert load_settings(GeneratorSettings, ["--model", "x"]).for_images().max_body_bytes == IMAGE_BODY_BYTES == 2**26
    given = load_settings(GeneratorSettings, ["--model", "x", "--max-body-bytes", str(8 * 2**20)])
    assert given.for_images().max_body_bytes == 8 * 2**20
    monkeypatch.setenv("TRIVIUM_GENERATOR_MAX_BODY_BYTES", "4096")
    assert load_settings(GeneratorSettings, ["--model", "x"]).for_images().max_body_bytes == 4096
