"""What a kernel's wrapper says when it is called wrongly.

Raised by the wrappers in this package before anything is launched. Knows shapes, strides and dtypes, no operation.
"""

import torch
from torch import Tensor

FLOATS = (torch.float16, torch.bfloat16, torch.float32)

ROW_ALIGNMENT = 16
"""Bytes."""


class KernelArgumentError(ValueError):
    """Shapes, dtypes or strides do not agree; always a bug of the caller."""


def check_shape(name: str, tensor: Tensor, *shape: int | None) -> None:
    """Raise unless `tensor` has this shape; None stands for any size."""
    fits = tensor.dim() == len(shape) and all(
        wanted is None or size == wanted for size, wanted in zip(tensor.shape, shape, strict=True)
    )
    if not fits:
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise KernelArgumentError(f"{name} has the shape {list(tensor.shape)}; it must be [{wanted}]")


def check_at_most(what: str, count: int, most: int) -> None:
    """Raise where there are more than a kernel is made for."""
    if count > most:
        raise KernelArgumentError(f"{what}: {count}; at most {most} are allowed")


def check_floats(**tensors: Tensor) -> None:
    """Raise unless all tensors have one dtype, and one that the kernels know."""
    dtypes = {name: tensor.dtype for name, tensor in tensors.items()}
    if len(set(dtypes.values())) > 1 or not set(dtypes.values()) <= set(FLOATS):
        raise KernelArgumentError(f"one of {FLOATS} is needed for all of: {dtypes}")


def check_fp32_or_like(like: Tensor, **tensors: Tensor) -> None:
    """Raise unless each tensor is fp32 or, as a sum that is already rounded, of the dtype of `like`."""
    for name, tensor in tensors.items():
        if tensor.dtype not in (torch.float32, like.dtype):
            raise KernelArgumentError(f"{name} is {tensor.dtype}; one of {torch.float32} and {like.dtype} is needed")


def check_dtype(dtype: torch.dtype, **tensors: Tensor) -> None:
    """Raise unless each tensor has this dtype."""
    for name, tensor in tensors.items():
        if tensor.dtype != dtype:
            raise KernelArgumentError(f"{name} is {tensor.dtype}; it must be {dtype}")


def check_last_axis(**tensors: Tensor) -> None:
    """Raise unless neighbours on each tensor's last axis are neighbours in memory."""
    for name, tensor in tensors.items():
        if tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
            raise KernelArgumentError(f"{name} must be contiguous on its last axis; strides are {tensor.stride()}")


def check_rows_aligned(**tensors: Tensor) -> None:
    """Raise unless the rows of each matrix begin at multiples of 16 bytes, as tensor descriptors need them."""
    for name, tensor in tensors.items():
        if tensor.data_ptr() % ROW_ALIGNMENT or tensor.stride(0) * tensor.itemsize % ROW_ALIGNMENT:
            raise KernelArgumentError(
                f"rows of {name} must begin at multiples of {ROW_ALIGNMENT} bytes; strides are {tensor.stride()}"
            )


def check_contiguous(**tensors: Tensor) -> None:
    """Raise unless each tensor is contiguous."""
    for name, tensor in tensors.items():
        if not tensor.is_contiguous():
            raise KernelArgumentError(f"{name} must be contiguous; strides are {tensor.stride()}")


def check_segments(
    num_rows: int, row_slots: Tensor, token_order: Tensor, chunk_slots: Tensor, chunk_starts: Tensor, chunk_lens: Tensor
) -> None:
    """Raise unless these can be the parts of one `LoraSegments` of this many rows."""
    check_shape("row_slots", row_slots, num_rows)
    check_shape("token_order", token_order, num_rows)
    check_shape("chunk_starts", chunk_starts, len(chunk_slots))
    check_shape("chunk_lens", chunk_lens, len(chunk_slots))
    check_dtype(torch.int32, row_slots=row_slots, token_order=token_order)
    check_dtype(torch.int32, chunk_slots=chunk_slots, chunk_starts=chunk_starts, chunk_lens=chunk_lens)


def check_cache(query: Tensor, key_cache: Tensor, value_cache: Tensor) -> None:
    """Raise unless the caches [slots, Hkv, D] fit each other and `query` [T, Hq, D]."""
    check_shape("key_cache", key_cache, None, None, query.shape[2])
    check_shape("value_cache", value_cache, *key_cache.shape)
    check_floats(query=query, key_cache=key_cache, value_cache=value_cache)
    check_last_axis(key_cache=key_cache, value_cache=value_cache)
    if key_cache.stride() != value_cache.stride():
        raise KernelArgumentError("key_cache and value_cache must have the same strides")
    if query.shape[1] % key_cache.shape[1]:
        raise KernelArgumentError(f"{query.shape[1]} query heads cannot share {key_cache.shape[1]} key heads")
