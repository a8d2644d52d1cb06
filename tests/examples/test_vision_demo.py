"""The demo of images as `make up` serves it: pictures that it has not learnt from, over HTTP, answered right."""

import base64
import io
import random

import httpx
import pytest

from examples.vision.pictures import digits, draw_shape
from tests.fakes.service_process import ServiceProcess

pytestmark = [pytest.mark.models, pytest.mark.e2e]
MODEL = "smollm2-135m-vision"
NUM_PICTURES = 5


@pytest.fixture(scope="module")
def url(models_dir, tmp_path_factory):
    log = tmp_path_factory.mktemp("vision") / "log"
    with ServiceProcess("generator", log, "--model", str(models_dir / MODEL), "--num-threads", "1") as process:
        process.wait_ready()
        yield process.url


def ask(url, image, text):
    data = io.BytesIO()
    image.save(data, "PNG")
    uri = f"data:image/png;base64,{base64.b64encode(data.getvalue()).decode()}"
    content = [{"type": "image_url", "image_url": {"url": uri}}, {"type": "text", "text": text}]
    body = {"model": MODEL, "messages": [{"role": "user", "content": content}], "temperature": 0, "max_tokens": 12}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["message"]["content"]


def share_right(url, pictures):
    asked = [(picture, question) for picture in pictures for question in picture.questions]
    right = [question.word in ask(url, picture.image, question.text) for picture, question in asked]
    return sum(right) / len(right)


def test_digits_that_were_held_out(url):
    assert share_right(url, digits()[1][:NUM_PICTURES]) >= 0.8


def test_shapes_that_were_never_drawn_before(url):
    rng = random.Random("shapes of the test")
    assert share_right(url, [draw_shape(rng) for _ in range(NUM_PICTURES)]) >= 0.8


def test_without_an_image_it_is_the_language_model(url):
    body = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0}
    content = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=120).json()["choices"][0]["message"][
        "content"
    ]
    assert "Paris" in content
