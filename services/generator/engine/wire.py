"""Commands as frames of bytes and back: one of msgpack, and one for the pixels of each image, so that no encoder copies them.

Used by both transports and by the API process's handle. Knows nothing of sockets. Must not import torch.
"""

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from services.generator.core.images import PromptImage
from services.generator.core.messages import Command, Submit

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)


def encode_command(command: Command) -> list[bytes]:
    """The frames of a command; a single one unless it brings images."""
    if not isinstance(command, Submit) or not command.request.images:
        return [_encoder.encode(command)]
    images = command.request.images
    bare = _with_pixels(command, [b""] * len(images))
    return [_encoder.encode(bare), *(image.pixels.data for image in images)]


def decode_command(frames: Sequence[bytes]) -> Command:
    """The command of these frames.

    Raises:
        msgspec.DecodeError: they are not what `encode_command` makes.
    """
    command: Command = _decoder.decode(frames[0])
    if isinstance(command, Submit) and command.request.images:
        return _with_pixels(command, frames[1:])
    return command


def _with_pixels(command: Submit, data: Sequence[bytes]) -> Submit:
    images = command.request.images
    if len(images) != len(data):
        raise msgspec.DecodeError(f"{len(data)} frames of pixels for {len(images)} images")
    filled = tuple(_with_data(image, one) for image, one in zip(images, data, strict=True))
    return Submit(replace(command.request, images=filled))


def _with_data(image: PromptImage, data: bytes) -> PromptImage:
    return replace(image, pixels=replace(image.pixels, data=data))
