"""How many kernels torch and oneDNN keep ready for shapes they have met.

Called by the entry points of embedder and reranker before torch is imported: both read their variables once. On a CPU each number
of tokens in a batch is a shape of its own; their 1,024 places each hold code and scratch memory and fill with hundreds of MiB.
"""

import os

NUM_PLACES = "64"
"""16 numbers of tokens, four products each. One that was forgotten costs a few milliseconds of the forward that meets it again."""


def set_shape_cache_environment() -> None:
    """Bound both caches, unless the environment says how."""
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", NUM_PLACES)
    os.environ.setdefault("LRU_CACHE_CAPACITY", NUM_PLACES)
