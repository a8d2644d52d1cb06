"""Tests of several processes on one GPU share it, but those marked `alone` wait until no other runs, and none begins meanwhile.

Imports nothing but pytest and the standard library, for the kernel tests.
"""

import fcntl

import pytest


@pytest.fixture(autouse=True)
def device_turn(request, tmp_path_factory):
    """A lock on a file of all workers of a run; the system lets go of a dead worker's."""
    if request.node.get_closest_marker("gpu") is None:
        yield
        return
    is_alone = request.node.get_closest_marker("alone") is not None
    with (tmp_path_factory.getbasetemp().parent / "device-turns").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX if is_alone else fcntl.LOCK_SH)
        yield
