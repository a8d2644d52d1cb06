"""Where the kernel tests run: compiled on a CUDA device if there is one, else in Triton's interpreter on the CPU.

Imports nothing but torch, triton and pytest, and so do the tests here: they also run where nothing else is installed.
"""

import os

import pytest
import torch

from tests.device_turns import device_turn  # noqa: F401 - a fixture

# Triton reads it when a kernel's module is imported, so this comes before any test module here.
IS_INTERPRETED = os.environ.setdefault("TRITON_INTERPRET", "0" if torch.cuda.is_available() else "1") == "1"

INTERPRETED_DTYPES = (torch.float32, torch.float16)
"""The interpreter's product of two bf16 tiles is silently wrong."""


@pytest.fixture(
    params=[
        pytest.param(("cpu", torch.float32), id="interpreted-fp32"),
        pytest.param(("cpu", torch.float16), id="interpreted-fp16"),
        pytest.param(("cuda", torch.float32), id="cuda-fp32", marks=pytest.mark.gpu),
        pytest.param(("cuda", torch.float16), id="cuda-fp16", marks=pytest.mark.gpu),
        pytest.param(("cuda", torch.bfloat16), id="cuda-bf16", marks=pytest.mark.gpu),
    ]
)
def place(request) -> tuple[str, torch.dtype]:
    """A device on which kernels run, and a dtype that they can be tested in there."""
    device, dtype = request.param
    if device == "cpu" and not IS_INTERPRETED:
        pytest.skip("runs with TRITON_INTERPRET=1")
    if device == "cuda" and (IS_INTERPRETED or not torch.cuda.is_available()):
        pytest.skip("needs a CUDA device, and kernels that are compiled")
    torch.manual_seed(0)
    return device, dtype


@pytest.fixture
def cuda() -> str:
    """The CUDA device, for tests of what only a device does."""
    if IS_INTERPRETED or not torch.cuda.is_available():
        pytest.skip("needs a CUDA device, and kernels that are compiled")
    torch.manual_seed(0)
    return "cuda"
