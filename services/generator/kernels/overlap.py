"""Programmatic dependent launch: a kernel begins while the one before it ends, and waits there for what that one writes.

Every kernel here that is launched in this way first lets its successor begin, loads at most what no kernel of the step writes
(weights, metadata), and calls `wait_for_inputs` before it reads or writes anything else. Since all of them wait, what was launched
longer ago is complete too. A wait within a loop that feeds `tl.dot` is no wait, unless the loop has one stage: Triton begins the
loads of later turns ahead of it. `tests/kernels/early_loads.py` looks at the code that comes out.
Source: CUDA C++ Programming Guide, "Programmatic Dependent Launch and Synchronization"; devices of compute capability 9 and newer.
"""

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

FIRST_CAPABILITY = (9, 0)


def overlap_options(tensor: Tensor) -> dict[str, bool]:
    """Arguments of a kernel's launch on the tensor's device: the constant OVERLAPS, and what Triton asks for where it holds."""
    return {"OVERLAPS": True, "launch_pdl": True} if _can_overlap(tensor.device) else {"OVERLAPS": False}


@triton.jit
def let_next_begin(OVERLAPS: tl.constexpr):
    """The next kernel may be launched from here on."""
    if OVERLAPS:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def wait_for_inputs(OVERLAPS: tl.constexpr):
    """All that was launched before is complete from here on."""
    if OVERLAPS:
        tl.extra.cuda.gdc_wait()


@functools.cache
def _can_overlap(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= FIRST_CAPABILITY
