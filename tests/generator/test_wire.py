"""Commands between API process and engine: what is put in comes out, pixels in frames of their own."""

import asyncio
import tempfile

import msgspec
import pytest

from services.generator.core.images import Pixels, PromptImage
from services.generator.core.messages import Abort, EngineReady, Hello, Submit
from services.generator.core.request import Request, RequestOptions, SamplingParams
from services.generator.engine.handle import EngineHandle
from services.generator.engine.transport import InMemoryTransport, ZmqTransport
from services.generator.engine.wire import decode_command, encode_command


def submit(*sizes):
    images = tuple(
        PromptImage(index, (1, 1, 1), bytes([index]), Pixels(size, 1, bytes([index]) * 3 * size))
        for index, size in enumerate(sizes)
    )
    return Submit([Request("api", 1, [5] * 9, SamplingParams(max_tokens=2), images=images)])


def test_pixels_are_frames_of_their_own_and_the_same_objects():
    command = submit(1000, 2000)
    frames = encode_command(command)
    assert len(frames[0]) < 1000
    assert [id(frame) for frame in frames[1:]] == [id(image.pixels.data) for image in command.requests[0].images]
    assert decode_command(frames) == command


@pytest.mark.parametrize("command", [submit(), Abort(3)])
def test_a_command_without_images_is_one_frame(command):
    frames = encode_command(command)
    assert frames == [msgspec.msgpack.encode(command)]
    assert decode_command(frames) == command


def test_lost_frames_are_noticed():
    frames = encode_command(submit(1, 2))
    with pytest.raises(msgspec.DecodeError, match="1 frames of pixels for 2 images"):
        decode_command(frames[:2])


def test_choices_share_the_pixels_that_they_have_in_common():
    requests = [submit(7, 8).requests[0], submit(7).requests[0], submit().requests[0]]
    frames = encode_command(Submit(requests))
    assert len(frames) == 3
    assert decode_command(frames) == Submit(requests)


def test_images_cross_in_memory():
    transport = InMemoryTransport(lambda *event: None)
    transport.put("api", submit(7, 8))
    assert transport.receive(0) == [("api", submit(7, 8))]


def test_images_cross_between_processes_unchanged():
    large = submit(100_000, 3)  # one beyond what the socket copies all the same, and one below
    with tempfile.TemporaryDirectory() as folder:
        transport = ZmqTransport(f"ipc://{folder}/engine")
        try:
            received = asyncio.run(_send_over(transport, f"ipc://{folder}/engine", large.requests[0]))
        finally:
            transport.close()
    assert [request.images for request in received.requests] == [large.requests[0].images] * 2
    assert [request.prompt_token_ids for request in received.requests] == [[5] * 9] * 2


async def _send_over(transport, address, request):
    handle = EngineHandle(max_queued=2)
    task = asyncio.create_task(handle.run(address))
    ((frontend_id, hello),) = await asyncio.to_thread(transport.receive, 30)
    assert hello == Hello()
    transport.send(frontend_id, EngineReady(100, 1, 1, 16))
    await handle.is_ready.wait()
    choice = (request.prompt_token_ids, request.sampling)
    handle.submit([choice, choice], RequestOptions(images=request.images))
    ((_, command),) = await asyncio.to_thread(transport.receive, 30)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return command
