"""Owns how the vision model's folder is put together: the embedded language model behind the tower that the repository keeps.

Called by the recipe of the vision model, which imports it late because numpy and safetensors are slow to load.
It must not change a value: the decoder's tensors get the names that they have inside a LLaVA folder, and that is all.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from safetensors import safe_open
from safetensors.numpy import save_file

_DECODER_FILE, _VISION_FILE = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")
_OWN_FILES = ("config.json", "processor_config.json", "chat_template.jinja")


def build_vision_folder(language_model: Path, vision: Path, folder: Path) -> None:
    """Fills `folder` from the prepared folder of the language model and from `examples/vision/weights`."""
    for name in _TOKENIZER_FILES:
        shutil.copyfile(language_model / name, folder / name)
    _drop_template(folder / "tokenizer_config.json")
    for name in _OWN_FILES:
        shutil.copyfile(vision / name, folder / name)
    shutil.copyfile(vision / "vision.safetensors", folder / _VISION_FILE)
    with safe_open(language_model / "model.safetensors", framework="numpy") as file:
        decoder = {_name_inside(name): file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
    save_file(decoder, folder / _DECODER_FILE, metadata={"format": "pt"})
    with safe_open(vision / "vision.safetensors", framework="numpy") as file:
        places = dict.fromkeys(decoder, _DECODER_FILE) | dict.fromkeys(file.keys(), _VISION_FILE)
    size = sum(os.path.getsize(folder / name) for name in (_DECODER_FILE, _VISION_FILE))
    index = {"metadata": {"total_size": size}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _name_inside(name: str) -> str:
    """`model.layers.0…` is `model.language_model.layers.0…` there; a head keeps its name."""
    return "model.language_model." + name.removeprefix("model.") if name.startswith("model.") else name


def _drop_template(path: Path) -> None:
    """The folder has a template of its own, which knows images."""
    settings = json.loads(path.read_text(encoding="utf-8"))
    settings.pop("chat_template", None)
    path.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
