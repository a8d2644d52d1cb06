"""What a benchmark on a GPU ran on; part of its rows of results."""

import subprocess
from functools import cache

import torch
import triton


@cache
def machine() -> dict[str, str]:
    """Device, driver and versions, which figures depend on besides the code."""
    versions = {"torch": torch.__version__, "triton": triton.__version__}
    if not torch.cuda.is_available():
        return {"device": "cpu", **versions}
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    driver = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]
    return {"device": torch.cuda.get_device_name(), **versions, "driver": driver}
