"""Capture of a call in a CUDA graph, for the tests that replay a kernel on other inputs at the same addresses."""

from collections.abc import Callable

import torch


def capture(call: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """A graph of `call`, which has been run once before: Triton compiles at the first call."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph
