"""The ids with which a model ends its answer, read from its folder.

Both processes need them: the API process to stop, the engine to let a grammar end. Must not import torch.
"""

from pathlib import Path
from typing import Any

from shared.modeling.vision_families import text_config
from shared.settings.model_folder import read_json


def read_end_token_ids(folder: Path) -> frozenset[int]:
    """`eos_token_id` of the generation config, or else of the config; empty where neither has one."""
    path = folder / "generation_config.json"
    generation = read_json(path) if path.is_file() else {}
    config = text_config(read_json(folder / "config.json"))
    return frozenset(_ids(generation.get("eos_token_id", config.get("eos_token_id"))))


def _ids(value: Any) -> list[int]:
    if value is None:
        return []
    return [int(item) for item in value] if isinstance(value, list) else [int(value)]
