"""What an engine of the GPU table is started with: files in an empty folder, and the arguments of an `LLM` for them."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.gpu.model import write_adapters, write_model
from benchmarks.gpu.rows import NUM_SLOTS, Bank

SETTINGS = {"load_format": "dummy", "dtype": "bfloat16", "max_model_len": 4096, "gpu_memory_utilization": 0.75}

MEMORY = Path("/dev/shm")
ROOM = 8 * 2**30
"""Bytes that the largest bank of the table fits in."""


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """An empty folder, in memory where there is room: the disk is not what is timed."""
    has_room = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > ROOM
    with tempfile.TemporaryDirectory(prefix="trivium-bench-", dir=MEMORY if has_room else None) as folder:
        yield Path(folder)


def write_bank(bank: Bank, folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    """Make model and adapters in an empty folder; the arguments of an `LLM` for them."""
    model, lora = write_model(folder / "model", config), write_adapters(folder, config, bank.ranks)
    adapters = {"lora": lora, "max_lora_rank": max(bank.ranks.values()), "max_loras": NUM_SLOTS} if lora else {}
    return {**SETTINGS, "model": str(model), "max_num_seqs": bank.max_rows, **adapters}
