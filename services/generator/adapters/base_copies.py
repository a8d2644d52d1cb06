"""Tensors of an adapter's folder that repeat the base model's: PEFT saves some beside an adapter of the embedding or the head.

Used by `outline`, which finds them by name and shape, and by `peft_folder`, which looks whether they were trained.
"""

import re
from dataclasses import dataclass

import torch

from services.generator.adapters.adapter_files import AdapterFiles
from services.generator.adapters.folder_files import refusal
from services.generator.adapters.modules import AdapterTarget
from shared.modeling.weights import WeightFiles

_KEY = re.compile(
    r"(?:base_model\.model\.)?(?P<module>.+?)"
    r"(?:\.base_layer|\.original_module|\.modules_to_save(?:\.[^.]+)?)?\.(?P<leaf>weight|bias)"
)


@dataclass(frozen=True, slots=True)
class BaseCopy:
    """A tensor of the adapter and the one of the base model that it stands for."""

    tensor: str
    base_tensor: str


def find_copies(names: list[str], files: AdapterFiles, target: AdapterTarget) -> tuple[BaseCopy, ...]:
    """What each of `names` repeats, by name and shape.

    Raises:
        InvalidRequestError: one of them repeats nothing; names it.
    """
    if not names:
        return ()
    if target.base_folder is None:
        raise _stray(names[0])
    with WeightFiles(target.base_folder) as base:
        return tuple(_find(name, files.shape(name), base, target) for name in names)


def check_copies(copies: tuple[BaseCopy, ...], files: AdapterFiles, target: AdapterTarget) -> None:
    """Compare all values.

    Raises:
        InvalidRequestError: some differ; names the tensor.
    """
    if not copies or target.base_folder is None:
        return
    with WeightFiles(target.base_folder) as base:
        for copy in copies:
            # All precisions that a copy may have are exact in fp32, so that equal there is equal.
            theirs = base.read(copy.base_tensor, files.shape(copy.tensor), torch.float32)
            if not torch.equal(files.read(copy.tensor).float(), theirs):
                raise refusal(
                    copy.tensor, f"differs from the base model's {copy.base_tensor}; only A and B may be trained"
                )


def _find(name: str, shape: tuple[int, ...], base: WeightFiles, target: AdapterTarget) -> BaseCopy:
    match = _KEY.fullmatch(name)
    if match is None:
        raise _stray(name)
    known = [f"{each}.{match['leaf']}" for each in target.names_in_base(match["module"])]
    found = next((each for each in known if each in base), None)
    if found is None:
        raise _stray(name)
    if base.shape(found) != shape:
        raise refusal(name, f"is {shape}, the base model's {found} is {base.shape(found)}")
    return BaseCopy(name, found)


def _stray(name: str) -> Exception:
    return refusal(name, "is not a LoRA tensor of a module that can be adapted, nor a copy of a base weight")
