"""Images over HTTP with a scripted engine: what reaches it, and what is refused before it hears of anything."""

import asyncio
import json
import threading

import numpy as np
import pytest

from services.generator.images import preparer
from services.generator.images.prepared_cache import PreparedCache
from services.generator.images.preparer import ImagePreparer, IntakeLimits
from shared.errors import OverloadedError
from tests.fakes.image_files import RGB, image_part, png, saved
from tests.fakes.row_per_pixel import RowPerPixel
from tests.fakes.tiny_vision import IMAGE_TOKEN, IMAGE_TOKEN_ID, save_image_tokenizer
from tests.generator.test_api import Api
from tests.shared.http.asgi import Wire, http_scope

TEXT = {"type": "text", "text": "what?"}
CHAT = "/v1/chat/completions"


def picture(height, width, colour):
    return image_part(png(np.full((height, width, 3), colour), colour_type=RGB))


def said(*parts, role="user"):
    return {"role": role, "content": list(parts)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("image-tokenizer")
    save_image_tokenizer(path)
    return path


@pytest.fixture
def api(folder):
    api = Api(
        folder,
        max_model_len=128,
        images=ImagePreparer(RowPerPixel(IMAGE_TOKEN_ID), IntakeLimits(3, 2000, 400), PreparedCache(2**20)),
    )
    api.engine.max_image_rows = 40
    return api


def refused(api, path, body):
    """The error, which is the same where a stream was asked for; the engine hears of nothing."""
    response = api.post(path, body)
    assert response.status_code == 400, response.text
    if path.startswith("/v1"):
        streamed = api.post(path, {**body, "stream": True})
        assert (streamed.status_code, streamed.json()) == (400, response.json())
    assert api.engine.submitted == []
    return response.json()["error"]


def test_images_reach_the_engine_at_the_places_of_their_rows(api):
    red, blue = picture(2, 3, (255, 0, 0)), picture(1, 2, (0, 0, 255))
    messages = [said(TEXT, red), {"role": "assistant", "content": "A"}, said(blue, red, TEXT)]
    answer = api.post(CHAT, {"messages": messages, "n": 2})
    assert answer.status_code == 200, answer.text

    pieces = ["user: what?", 6, "assistant: Auser: ", 2, 6, "what?assistant:"]
    ids, places = [], []
    for piece in pieces:
        if isinstance(piece, int):
            places.append(len(ids))
            ids += [IMAGE_TOKEN_ID] * piece
        else:
            ids += api.tokenizer.encode(piece, add_special_tokens=False)
    assert [prompt for prompt, _ in api.engine.submitted] == [ids, ids]
    first, second = api.engine.images
    assert [image.position for image in first] == places
    assert [image.grid for image in first] == [(1, 2, 3), (1, 1, 2), (1, 2, 3)]
    assert [image.pixels.data for image in first] == [b"\xff\0\0" * 6, b"\0\0\xff" * 2, b"\xff\0\0" * 6]
    assert all(one is other for one, other in zip(first, second, strict=True))
    assert answer.json()["usage"]["prompt_tokens"] == len(ids)
    assert api.post("/tokenize", {"messages": messages, "add_generation_prompt": True}).json()["tokens"] == ids


def test_a_conversation_without_images_is_as_ever(api):
    assert api.post(CHAT, {"messages": [said(TEXT)]}).status_code == 200
    assert api.tokenizer.decode(api.engine.submitted[0][0]) == "user: what?assistant:"
    assert api.engine.images == [()]


@pytest.mark.parametrize(("recipe", "modalities"), [(RowPerPixel(IMAGE_TOKEN_ID), ["text", "image"]), (None, ["text"])])
def test_the_model_list_says_what_a_model_takes(folder, recipe, modalities):
    api = Api(folder, images=recipe and ImagePreparer(recipe, IntakeLimits(1, 1, 1), PreparedCache(2**20)))

    async def get():
        async with api.http() as client:
            return await client.get("/v1/models/tiny")

    assert asyncio.run(get()).json()["input_modalities"] == modalities


HUGE = png(np.zeros((12_000, 12_000, 1), np.uint8), 1)[:1900]
PHOTO = saved(np.zeros((8, 8, 3), np.uint8), "JPEG")


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        (image_part(b"hello"), "no image of a kind that is taken"),
        (image_part(PHOTO), "says image/png, its content is JPEG"),
        (image_part(PHOTO[:100], "image/jpeg"), "cannot be read"),
        (image_part(HUGE), "12000x12000 pixels; at most 400"),
        (image_part(b"x" * 2001), "at most 2000"),
        (picture(300, 1, 0), "at most 200 times"),
        ({"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}, "nothing is fetched"),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,@"}}, "not valid base64"),
    ],
)
def test_an_image_that_cannot_be_taken_is_named_by_its_part(api, part, reason):
    error = refused(api, CHAT, {"messages": [said(TEXT), said(picture(1, 1, 9), part)]})
    assert (error["code"], error["param"]) == ("image_invalid", "messages.1.content.1")
    assert error["message"].startswith("messages.1.content.1: ")
    assert reason in error["message"]


def test_too_many_images_are_refused_with_limit_and_count(api):
    error = refused(api, CHAT, {"messages": [said(*[picture(1, 1, 0)] * 4)]})
    assert "4 images; at most 3" in error["message"]
    assert "--limit-images-per-prompt" in error["message"]


def test_rows_count_before_the_length_is_checked(folder):
    api = Api(
        folder, images=ImagePreparer(RowPerPixel(IMAGE_TOKEN_ID), IntakeLimits(3, 2000, 400), PreparedCache(2**20))
    )
    api.engine.max_image_rows = 1000
    error = refused(api, CHAT, {"messages": [said(picture(8, 8, 0), TEXT)]})
    assert error["code"] == "context_length_exceeded"
    assert "has 85 tokens, 64 of them for images" in error["message"]


def test_images_that_the_engine_can_never_hold_together_are_refused_and_the_same_one_twice_counts_once(api):
    messages = [said(picture(4, 6, 1), picture(4, 6, 1))]
    assert api.post(CHAT, {"messages": messages}).status_code == 200
    api.engine.submitted.clear()
    error = refused(api, CHAT, {"messages": [said(picture(4, 6, 1), picture(4, 5, 2))]})
    assert (error["code"], "44 rows; the engine holds 40" in error["message"]) == ("image_invalid", True)
    assert "--encoder-cache-size" in error["message"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", {"prompt": f"a {IMAGE_TOKEN}"}, "prompt"),
        ("/v1/completions", {"prompt": [1, IMAGE_TOKEN_ID]}, "prompt"),
        (CHAT, {"messages": [said({"type": "text", "text": IMAGE_TOKEN})]}, "messages"),
        (CHAT, {"messages": [said({"type": "text", "text": IMAGE_TOKEN}, picture(1, 1, 0))]}, "messages"),
        ("/tokenize", {"messages": [{"role": "user", "content": IMAGE_TOKEN}]}, "messages"),
    ],
)
def test_a_placeholder_without_an_image_is_refused(api, path, body, param):
    error = refused(api, path, body)
    assert (error["param"], "placeholder of an image" in error["message"]) == (param, True)


def test_a_template_that_leaves_images_out_is_found_out(tmp_path):
    save_image_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{% for m in messages %}{{ m.role }}{% endfor %}")
    api = Api(
        tmp_path, images=ImagePreparer(RowPerPixel(IMAGE_TOKEN_ID), IntakeLimits(3, 2000, 400), PreparedCache(2**20))
    )
    assert "0 times for 1 images" in refused(api, CHAT, {"messages": [said(picture(1, 1, 0))]})["message"]


def test_a_model_without_images_refuses_them(folder):
    error = refused(Api(folder), CHAT, {"messages": [said(TEXT, picture(1, 1, 0))]})
    assert error["message"] == "messages.0.content.1: this model takes no images"


class Gate:
    """A recipe that keeps its thread until it is opened."""

    def __init__(self):
        self.num_prepared = 0
        self.has_begun = threading.Event()
        self.opened = threading.Event()
        self._recipe = RowPerPixel(IMAGE_TOKEN_ID)
        self.image_token_id = IMAGE_TOKEN_ID
        self.grid_for = self._recipe.grid_for

    def prepare(self, image):
        self.num_prepared += 1
        self.has_begun.set()
        assert self.opened.wait(60)
        return self._recipe.prepare(image)


@pytest.mark.parametrize("path", [CHAT, "/tokenize"])
def test_images_of_a_client_that_is_gone_are_not_prepared(folder, monkeypatch, path):
    monkeypatch.setattr(preparer, "NUM_THREADS", 1)
    gate = Gate()
    api = Api(folder, max_model_len=128, images=ImagePreparer(gate, IntakeLimits(3, 2000, 400), PreparedCache(0)))
    api.engine.max_image_rows = 40
    body = {"messages": [said(*[picture(1, 1, 0)] * 3)]}
    wire = Wire(json.dumps(body).encode())

    async def leave():
        scope = http_scope(path, [(b"content-type", b"application/json")])
        task = asyncio.create_task(api.app(scope, wire.receive, wire.send))
        await asyncio.to_thread(gate.has_begun.wait, 60)
        wire.hang_up.set()
        await asyncio.wait({task}, timeout=5)
        gate.opened.set()
        await task

    asyncio.run(leave())
    assert api.post(path, {"messages": [said(picture(1, 1, 0))]}).status_code == 200
    assert gate.num_prepared == 2  # the one that had begun, and that of the next client
    assert len(api.engine.submitted) == (path == CHAT)


def test_past_so_many_bytes_of_waiting_images_clients_are_told_to_come_back(folder, monkeypatch):
    gate = Gate()
    images = ImagePreparer(gate, IntakeLimits(3, 2000, 400), PreparedCache(0))
    monkeypatch.setattr(preparer, "MAX_WAITING_BYTES", 200)
    url = picture(1, 1, 0)["image_url"]["url"]
    assert 100 < len(url) < 200

    async def overload():
        first = asyncio.create_task(images.prepare({"a": url}))
        await asyncio.to_thread(gate.has_begun.wait, 60)
        with pytest.raises(OverloadedError):
            await images.prepare({"b": url})
        gate.opened.set()
        await first
        assert len(await images.prepare({"c": url, "d": url})) == 2, "one alone is never too much"

    asyncio.run(overload())
