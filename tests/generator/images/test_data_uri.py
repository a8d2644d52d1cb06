"""Which URLs are taken as images, and that the error says what is wrong with the others."""

import base64

import pytest

from services.generator.images.data_uri import ImageKind, read_data_uri
from tests.fakes.image_files import data_uri

HEADS = {
    ImageKind.PNG: b"\x89PNG\r\n\x1a\n rest",
    ImageKind.JPEG: b"\xff\xd8\xff\xe0 rest",
    ImageKind.WEBP: b"RIFF\0\0\0\0WEBP rest",
    ImageKind.GIF: b"GIF89a rest",
}


@pytest.mark.parametrize("kind", HEADS)
def test_a_file_of_each_kind_comes_out_as_it_went_in(kind):
    file = read_data_uri(data_uri(HEADS[kind], f"image/{kind.lower()}"), 100)
    assert (file.kind, file.data) == (kind, HEADS[kind])


def test_names_are_taken_in_any_case_and_jpg_is_jpeg():
    assert read_data_uri(data_uri(HEADS[ImageKind.JPEG], "IMAGE/JPG"), 100).kind is ImageKind.JPEG
    assert read_data_uri(data_uri(HEADS[ImageKind.GIF]).replace("data:image/png", "DATA:image/gif"), 100)


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com/cat.png",
        "http://127.0.0.1/cat.png",
        "file:///etc/passwd",
        "ftp://example.com/a.gif",
        "cat.png",
        "data:,a",
        "data:image/png,abc",
        "data:image/svg+xml;base64,AAAA",
        "data:image/png;base64",
        " data:image/png;base64,AAAA",
        "data:image/png" + ";a=b" * 30 + ";base64,AAAA",
    ],
)
def test_another_url_is_refused_and_the_message_says_that_nothing_is_fetched(url):
    with pytest.raises(ValueError, match=r"data URI of PNG, JPEG, WebP or GIF in base64.*nothing is fetched"):
        read_data_uri(url, 100)


@pytest.mark.parametrize("payload", ["?", "AAA", "AA AA", "AAAA\n", "é", "-_-_", "A" * 5])
def test_garbage_in_place_of_base64_is_refused(payload):
    with pytest.raises(ValueError, match="not valid base64"):
        read_data_uri(f"data:image/png;base64,{payload}", 100)


@pytest.mark.parametrize("content", [b"", b"hello", HEADS[ImageKind.JPEG], HEADS[ImageKind.GIF], b"\x89PNG"])
def test_content_of_another_kind_than_said_is_refused(content):
    with pytest.raises(ValueError, match=r"says image/png, its content is (JPEG|GIF|no image of a kind)"):
        read_data_uri(data_uri(content), 100)


@pytest.mark.parametrize("padding", [0, 1, 2])
def test_the_limit_of_bytes_holds_to_the_byte(padding):
    content = HEADS[ImageKind.PNG] + b"x" * (padding + 60)
    assert len(base64.b64encode(content)) % 4 == 0
    assert read_data_uri(data_uri(content), len(content)).data == content
    with pytest.raises(ValueError, match=r"at most \d+ are taken \(--max-image-bytes\)"):
        read_data_uri(data_uri(content), len(content) - 1)
