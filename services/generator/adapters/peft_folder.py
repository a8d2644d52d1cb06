"""Reads a PEFT LoRA folder whole, checks it whole, and packs it for the bank.

Called before an adapter is served. What configuration and headers can tell is checked by `outline` before any value is read.
"""

from pathlib import Path

from services.generator.adapters.adapter_files import AdapterFiles
from services.generator.adapters.base_copies import check_copies
from services.generator.adapters.folder_files import check_unchanged, look_at, refusal
from services.generator.adapters.modules import AdapterTarget
from services.generator.adapters.outline import PlannedModule, outline
from services.generator.adapters.packed import ModuleWeights, PackedAdapter, digests, pack
from services.generator.adapters.peft_config import read_peft_config


def load_adapter(folder: Path, target: AdapterTarget, root: Path | None = None) -> PackedAdapter:
    """The adapter in `folder`, ready to be copied into a slot.

    Args:
        root: what all files of the folder must lie below, links followed.
    Raises:
        InvalidRequestError: it cannot be reproduced exactly, or is broken; names the key, file or tensor.
    """
    before = look_at(folder)
    config = read_peft_config(folder, root)
    with AdapterFiles(folder, root) as files:
        plan = outline(config, files, target)
        check_copies(plan.copies, files, target)
        weights = [_read(item, files, target) for item in plan.modules]
        check_unchanged(folder, before)
        digest, kv_digest = digests(weights, target.num_layers)
        report = plan.report(target.dtype, "is a copy of")
        return PackedAdapter(*pack(weights, target), digest, kv_digest, report)


def _read(item: PlannedModule, files: AdapterFiles, target: AdapterTarget) -> ModuleWeights:
    a, b = (files.read(item.tensors[side]).to(target.dtype) for side in "AB")
    if not (a.isfinite().all() and b.isfinite().all()):
        raise refusal(item.module, f"has values that are not finite as {target.dtype}")
    return ModuleWeights(item.module, item.place, a, b, item.scale)
