"""A kernel that begins while the one before it ends reads nothing of what that one writes before it has waited.

No run shows whether it does: what is read too early is mostly there by then. So the compiled code is looked at.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import services.generator.kernels

WEIGHTS = {"weight_desc", "weight_ptr", "a_ptr", "b_ptr", "ranks_ptr", "scales_ptr"}
METADATA = {"row_slots_ptr", "order_ptr", "chunk_slots_ptr", "chunk_starts_ptr", "chunk_lens_ptr"} | {
    "slot_mapping_ptr",
    "context_lens_ptr",
}
"""Made at the beginning of a step, before kernels of the library, which end before anything else begins."""


@pytest.fixture(scope="module")
def found() -> dict[str, set[str]]:
    """By kernel, what is read or written before a wait."""
    program = [sys.executable, "-m", "tests.kernels.early_loads"]
    # Not in the interpreter, in which this process may run: it compiles nothing.
    done = subprocess.run(
        program, env=os.environ | {"TRITON_INTERPRET": "0"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return {name: set(arguments) for name, arguments in json.loads(done.stdout).items()}


@pytest.fixture
def early(found) -> dict[str, set[str]]:
    """Likewise, for each test anew."""
    return dict(found)


def test_what_is_read_too_early_is_found(early):
    assert early["_too_early_kernel"] == {"first_desc", "h_ptr"}


def test_only_weights_and_metadata_are_read_before_the_wait(early):
    del early["_too_early_kernel"]
    too_early = {name: arguments - WEIGHTS - METADATA for name, arguments in early.items()}
    assert not any(too_early.values()), too_early


def test_some_are(early):
    assert early["_lora_expand_tiles_kernel"] >= {"b_ptr", "ranks_ptr", "scales_ptr"}


def test_all_kernels_that_overlap_are_looked_at(early):
    (folder,) = map(Path, services.generator.kernels.__path__)
    texts = [path.read_text(encoding="utf-8") for path in folder.glob("*.py")]
    kernels = [re.findall(r"^def (_\w+_kernel)\(", text, re.MULTILINE) for text in texts if "overlap_options" in text]
    assert set(early) - {"_too_early_kernel"} == {name for names in kernels for name in names}
