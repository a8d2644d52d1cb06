"""Commands as frames of bytes and back: one of msgpack, and one for the pixels of each image, so that no encoder copies them.

Used by both transports and by the API process's handle. Knows nothing of sockets. Must not import torch.
"""

from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from services.generator.core.images import PromptImage
from services.generator.core.messages import Command, Submit
from services.generator.core.request import Request

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)


def encode_command(command: Command) -> list[bytes]:
    """The frames of a command; a single one unless it brings images."""
    pixels = _pixels(command)
    if not isinstance(command, Submit) or not pixels:
        return [_encoder.encode(command)]
    bare = _with_pixels(command, dict.fromkeys(pixels, b""))
    return [_encoder.encode(bare), *pixels.values()]


def decode_command(frames: Sequence[bytes]) -> Command:
    """The command of these frames.

    Raises:
        msgspec.DecodeError: they are not what `encode_command` makes.
    """
    command: Command = _decoder.decode(frames[0])
    pixels = _pixels(command)
    if len(pixels) != len(frames) - 1:
        raise msgspec.DecodeError(f"{len(frames) - 1} frames of pixels for {len(pixels)} images")
    if isinstance(command, Submit) and pixels:
        return _with_pixels(command, dict(zip(pixels, frames[1:], strict=True)))
    return command


def _pixels(command: Command) -> dict[bytes, bytes]:
    """The pixels of each different image by its digest, in the order in which they come: choices share them."""
    if not isinstance(command, Submit):
        return {}
    return {image.digest: image.pixels.data for request in command.requests for image in request.images}


def _with_pixels(command: Submit, data: Mapping[bytes, bytes]) -> Submit:
    return Submit([_request_with(request, data) for request in command.requests])


def _request_with(request: Request, data: Mapping[bytes, bytes]) -> Request:
    return replace(request, images=tuple(_with_data(image, data[image.digest]) for image in request.images))


def _with_data(image: PromptImage, data: bytes) -> PromptImage:
    return replace(image, pixels=replace(image.pixels, data=data))
