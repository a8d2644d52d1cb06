"""How much KV fits beside everything else on a GPU: measured by running the largest step there is, before the cache is made.

Called by `engine.build`, once, at start. Makes no cache itself; what other processes take later it cannot know.
"""

from collections.abc import Callable

import torch

from services.generator.engine.memory_budget import GIB
from shared.observability.logging import get_logger
from shared.settings.errors import StartError

log = get_logger(__name__)

GRAPH_BYTES = 2**30
"""Kept for CUDA graphs, which are captured when the cache is there already."""


def kv_blocks_beside(run_largest_step: Callable[[], None], block_bytes: int, utilization: float) -> int:
    """KV blocks that fit.

    Args:
        run_largest_step: allocates what the largest step needs beyond what is allocated now, and lets go of it.
        block_bytes: bytes of a block over all layers.
        utilization: share of the device's memory that this process may use.
    Raises:
        StartError: there is no memory left for a single block; says by how much.
    """
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    run_largest_step()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    others = total - free - torch.cuda.memory_reserved()  # the driver's own and other processes
    available = int(total * utilization) - others - peak - GRAPH_BYTES
    log.info(
        "memory_measured",
        total_gib=round(total / GIB, 2),
        others_gib=round(others / GIB, 2),
        peak_gib=round(peak / GIB, 2),
        kv_gib=round(available / GIB, 2),
    )
    if available < block_bytes:
        raise StartError(
            f"weights, adapters and the largest step take {peak / GIB:.2f} GiB of the device's {total / GIB:.2f}, so that "
            f"{(block_bytes - available) / GIB:.2f} GiB are missing for a KV cache; raise --gpu-memory-utilization, or lower "
            "--max-num-batched-tokens, --max-num-seqs, --max-loras, --max-lora-rank, --encoder-cache-size or "
            "--max-num-encoder-tokens"
        )
    return available // block_bytes
