"""What each kernel may read before it waits for the kernel before it, found in the machine code of a GPU that is not needed.

`python -m tests.kernels.early_loads` launches every kernel that overlaps with its predecessor on tensors of the CPU, compiles what
was launched for compute capability 9.0 instead of running it, and follows all paths of the code from its entry to a wait. It
prints, as JSON, by kernel the names of the arguments through which memory is read or written on the way there.
"""

import json
import re
import sys
from collections import defaultdict
from itertools import product
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction
from triton.tools.tensor_descriptor import TensorDescriptor

from services.generator.kernels import overlap
from services.generator.kernels.argmax import argmax
from services.generator.kernels.lora_expand import lora_expand
from services.generator.kernels.lora_segments import SegmentLayout
from services.generator.kernels.lora_shrink import lora_shrink
from services.generator.kernels.lora_silu_mul import lora_silu_mul
from services.generator.kernels.paged_attention_decode import paged_attention_decode
from services.generator.kernels.paged_attention_prefill import paged_attention_prefill
from services.generator.kernels.rms_norm import rms_norm
from services.generator.kernels.rope_kv_write import rope_kv_write
from services.generator.kernels.sample import sample
from services.generator.kernels.silu_mul import silu_mul
from services.generator.kernels.skinny_linear import skinny_linear, skinny_silu_mul

TARGET = GPUTarget("cuda", 90, 32)
POINTERS = {
    torch.bfloat16: "*bf16",
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.int32: "*i32",
    torch.int64: "*i64",
}
NUM_SLOTS, WIDTH = 4, 128
RANKS = (16, 128)
"""Of a bank: all ranks in one turn, and in several."""

OWN_PARAMETERS = 2
"""That Triton adds behind a kernel's own."""

Launch = tuple[JITFunction[Any], dict[str, Any]]


def main() -> None:
    """Print what was found."""
    found = defaultdict[str, set[str]](set)
    for kernel, arguments in _record(_launch_all):
        found[kernel.__name__] |= _early(*_compile(kernel, arguments))
    json.dump({name: sorted(arguments) for name, arguments in found.items()}, sys.stdout)


def _record(launch_all: Any) -> list[Launch]:
    launches: list[Launch] = []

    def run(kernel: JITFunction[Any], *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        launches.append((kernel, dict(zip(kernel.arg_names, args, strict=False)) | kwargs))

    JITFunction.run = run  # type: ignore[method-assign]
    overlap._can_overlap = lambda _device: True  # this process does nothing else
    launch_all()
    return launches


@triton.jit
def _too_early_kernel(
    out_ptr, first_desc, late_desc, h_ptr, end, OVERLAPS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """What must be found: a tile before the wait, and loads that a pipeline begins ahead of the wait within its loop."""
    offs = tl.arange(0, BLOCK)
    acc = tl.zeros([BLOCK, BLOCK], tl.float32)
    first = first_desc.load([0, 0])
    for k in range(0, end, BLOCK):
        overlap.wait_for_inputs(OVERLAPS)
        h = tl.load(h_ptr + (k + offs)[:, None] * BLOCK + offs[None, :])
        acc = tl.dot(first, h, acc)
    overlap.wait_for_inputs(OVERLAPS)
    late = late_desc.load([0, 0])
    tl.store(out_ptr + offs[:, None] * BLOCK + offs[None, :], acc + late)


def _launch_all() -> None:
    tile = TensorDescriptor(_floats(64, 64), [64, 64], [64, 1], [64, 64])
    _too_early_kernel[(1,)](
        _floats(64, 64), tile, tile, _floats(64, 64), 64, BLOCK=64, **overlap.overlap_options(tile.base)
    )
    for num_rows in (8, 64):
        _layer(num_rows)
        for chunk_size, rank in product((1, 16, 64), RANKS):
            _adapters(num_rows, chunk_size, rank)


def _floats(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.bfloat16)


def _ints(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int32)


def _layer(num_rows: int) -> None:
    x, parts, weight = _floats(num_rows, WIDTH), torch.zeros(2, num_rows, WIDTH), _floats(2 * WIDTH, WIDTH)
    rms_norm(x, x, weight[0], 1e-5)
    rms_norm(x, parts, weight[0], 1e-5, x)
    skinny_linear(parts, x, weight[:WIDTH], weight[0])
    skinny_silu_mul(x, x, weight, weight.view(-1)[: 2 * WIDTH])
    silu_mul(x, _floats(num_rows, 2 * WIDTH))
    ids, parameters = torch.zeros(num_rows, dtype=torch.int64), torch.zeros(num_rows)
    argmax(ids, x)
    for filters in (None, (ids, parameters, parameters)):
        sample(ids, x, parameters, filters, parameters.double())
    query, cache, qkv = _floats(num_rows, 8, 64), _floats(64, 2, 64), _floats(num_rows, 12 * 64)
    slots, norm = torch.zeros(num_rows, dtype=torch.int64), weight[0, :64]
    rope_kv_write(_floats(num_rows, 10, 64), cache, cache, qkv, _floats(num_rows, 64), slots, norm, norm)
    table, lens = _ints(num_rows, 4), _ints(num_rows)
    for splits in (1, 4):
        scratch = torch.zeros(num_rows, 8, splits, 64), torch.zeros(num_rows, 8, splits)
        paged_attention_decode(query, *scratch, query, cache, cache, table, lens, block_size=16)
    tiles = _ints(num_rows + 1), _ints(2, 4)
    own = _floats(num_rows, 2, 64)
    paged_attention_prefill(query, query, own, own, cache, cache, table, lens, *tiles, block_size=16)


def _adapters(num_rows: int, chunk_size: int, rank: int) -> None:
    layout = SegmentLayout(num_rows, NUM_SLOTS, chunk_size)
    segments = layout.split(_ints(layout.size)).arrays
    x, y, h = _floats(num_rows, WIDTH), _floats(num_rows, 2 * WIDTH), torch.zeros(2, num_rows, 2, rank)
    a, b = _floats(NUM_SLOTS, 2, rank, WIDTH), _floats(NUM_SLOTS, 2 * WIDTH, rank)
    ranks, scales = _ints(NUM_SLOTS, 2), torch.zeros(NUM_SLOTS, 2)
    lora_shrink(h, x, a, ranks, *segments, chunk_size=chunk_size)
    joined = _floats(1, num_rows, NUM_SLOTS, 2, rank)
    for each in (h[:, :, None], joined):
        adapters = (each, b, ranks, scales, *segments)
        lora_expand(y, *adapters, chunk_size=chunk_size, slice_sizes=(WIDTH, WIDTH))
        lora_silu_mul(x, y, *adapters, chunk_size=chunk_size)


def _compile(kernel: JITFunction[Any], arguments: dict[str, Any]) -> tuple[str, list[str]]:
    """Its PTX, and the names of the arguments that are parameters there, in order."""
    constants = {param.name for param in kernel.params if param.is_constexpr}
    values = {name: arguments.pop(name) for name in kernel.arg_names}
    signature = {name: "constexpr" if name in constants else _type_of(value) for name, value in values.items()}
    positions = {name: index for index, name in enumerate(kernel.arg_names)}
    given = {(positions[name],): values[name] for name in constants}
    aligned = {
        (positions[name],): [["tt.divisibility", 16]]
        for name, value in values.items()
        if name not in constants and _is_aligned(value)
    }
    source = ASTSource(kernel, signature, given, aligned)
    ptx = triton.compile(source, target=TARGET, options=arguments).asm["ptx"]
    names = [name for name in kernel.arg_names if name not in constants for _ in range(_num_words(values[name]))]
    num_declared = ptx[ptx.index(".entry") :].split(")", 1)[0].count(".param ")
    if num_declared != len(names) + OWN_PARAMETERS:
        raise RuntimeError(f"{kernel.__name__}: {num_declared} parameters, of which {len(names)} are known: {names}")
    return ptx, names


def _num_words(value: Any) -> int:
    """Parameters in the code: a descriptor's sizes and strides come behind it."""
    return 1 + 2 * len(value.shape) if isinstance(value, TensorDescriptor) else 1


def _type_of(value: Any) -> str:
    if isinstance(value, TensorDescriptor):
        dtype = POINTERS[value.base.dtype].removeprefix("*")
        return f"tensordesc<{dtype}{list(value.block_shape)}>"
    if isinstance(value, Tensor):
        return POINTERS[value.dtype]
    return "fp32" if isinstance(value, float) else "i32"


def _is_aligned(value: Any) -> bool:
    return isinstance(value, Tensor) or (isinstance(value, int) and value % 16 == 0)


def _early(ptx: str, names: list[str]) -> set[str]:
    """Arguments from which an address is made that some path reads or writes before a wait."""
    code = _instructions(ptx)
    origins = _origins(code)
    early, seen, open_ends = set[int](), set[int](), [0]
    while open_ends:
        index = open_ends.pop()
        while index < len(code) and index not in seen:
            seen.add(index)
            line = code[index]
            if "griddepcontrol.wait" in line or line == "ret":
                break
            if "global" in line and re.search(r"\b(ld|st|atom|cp\.async)\b", line):
                addresses = re.findall(r"\[\s*(%\w+)", line)
                early |= {origin for register in addresses for origin in origins[register]}
            if branch := re.search(r"\bbra(?:\.uni)?\s+(\S+)$", line):
                open_ends.append(_place_of(branch.group(1), code, index))
                if not line.startswith("@"):
                    break
            index += 1
    return {names[origin] for origin in early if names[origin].endswith(("_ptr", "_desc"))}


def _place_of(label: str, code: list[str], index: int) -> int:
    """The nearest of that name: those within braces, as of a wait for a tile, are there many times."""
    places = [place for place, line in enumerate(code) if line == f"{label}:"]
    return min(places, key=lambda place: abs(place - index))


def _instructions(ptx: str) -> list[str]:
    body = re.sub(r"//.*", "", ptx[ptx.index(".entry") :])
    lines = (line.strip().rstrip(";") for part in body.splitlines() for line in part.split("; "))
    return [line for line in lines if line and not line.startswith(".")]


def _origins(code: list[str]) -> dict[str, set[int]]:
    """By register, the parameters that its value is made from; what is loaded from memory is made from none."""
    origins = defaultdict[str, set[int]](set)
    changed = True
    while changed:
        changed = False
        for line in code:
            if re.search(r"\bld\.(global|shared)|\bst\.|cp\.async|mma", line):
                continue
            registers = re.findall(r"%[a-z]+\d+", line)
            if not registers or (line.startswith("@") and "bra" in line):
                continue
            made, *used = [register for register in registers if not register.startswith("%p")] or [registers[0]]
            sources = {int(number) for number in re.findall(r"_param_(\d+)", line)}
            sources |= {origin for register in used for origin in origins[register]}
            if not sources <= origins[made]:
                origins[made] |= sources
                changed = True
    return origins


if __name__ == "__main__":
    main()
