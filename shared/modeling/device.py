"""Where a model runs and in which precision, from the setting and the folder.

Called by the loaders of all model services, in the process that owns the model.
"""

from pathlib import Path
from typing import Literal

import torch

from shared.modeling.vision_families import text_config
from shared.settings.errors import StartError
from shared.settings.model_folder import read_json

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def choose_device(setting: Literal["auto", "cpu", "cuda"] = "auto") -> torch.device:
    """The device named by `setting`; for `auto` the first CUDA device, or the CPU.

    Raises:
        StartError: there is no CUDA device.
    """
    has_gpu = torch.cuda.is_available()
    if setting == "cuda" and not has_gpu:
        raise StartError("--device cuda: torch finds no GPU here; start with --device cpu or auto")
    return torch.device("cuda", 0) if has_gpu and setting != "cpu" else torch.device("cpu")


def choose_dtype(setting: str, folder: Path, device: torch.device) -> torch.dtype:
    """The dtype named by `setting`; for `auto` float32 on a CPU and the one in config.json on a GPU.

    Raises:
        StartError: config.json names a dtype that is not supported.
    """
    if setting == "auto":
        config = text_config(read_json(folder / "config.json"))
        setting = (
            "float32" if device.type == "cpu" else str(config.get("dtype") or config.get("torch_dtype") or "float32")
        )
    if setting not in DTYPES:
        raise StartError(f"config.json names the dtype {setting}; choose another with --dtype ({', '.join(DTYPES)})")
    return DTYPES[setting]
