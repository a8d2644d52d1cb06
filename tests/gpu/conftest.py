"""The whole engine on a CUDA device. Skipped without one, and where kernels are interpreted."""

import os

import pytest
import torch

from tests.device_turns import device_turn  # noqa: F401 - a fixture
from tests.generator.adapters.conftest import base  # noqa: F401 - a fixture


@pytest.fixture(autouse=True)
def cuda():
    """Every test here needs the device."""
    if not torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("needs a CUDA device, and kernels that are compiled")


@pytest.fixture
def utilization() -> float:
    """A value of --gpu-memory-utilization: a tenth of the device beyond what is in use already, by other processes too."""
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    return 1 - free / total + 0.1
