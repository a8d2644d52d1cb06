"""How `serve` ends without a signal; signals need a process and are tested in `test_process.py`."""

import socket
import threading

import httpx
import pytest

from shared.http.server import serve
from tests.fakes.live_server import free_port, wait_until
from tests.fakes.tiny_service import TinyService, TinySettings


def test_a_failure_ends_it_with_1() -> None:
    settings = TinySettings(port=free_port())
    service = TinyService(settings)
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(serve(service.app, settings, service.lifecycle)))
    thread.start()
    url = f"http://127.0.0.1:{settings.port}"

    def answers() -> bool:
        try:
            return httpx.post(url + "/fail", timeout=5).status_code == 200
        except httpx.ConnectError:
            return False

    wait_until(answers, "told to fail")
    thread.join(10)
    assert codes == [1]


def test_a_start_that_fails_does_not_end_with_0() -> None:
    settings = TinySettings(port=free_port())
    service = TinyService(settings)
    service.fails_to_start = True
    with pytest.raises(SystemExit) as raised:
        serve(service.app, settings, service.lifecycle)
    assert raised.value.code not in (0, None)


def test_a_port_in_use_does_not_end_with_0() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        settings = TinySettings(port=taken.getsockname()[1])
        service = TinyService(settings)
        with pytest.raises(SystemExit) as raised:
            serve(service.app, settings, service.lifecycle)
    assert raised.value.code not in (0, None)
