"""How many CPU threads a model process uses, and that they sleep instead of spinning while they wait.

Called by the entry points of the model processes before torch is imported: OpenMP reads its variables once, at load.
Several services on one machine otherwise burn each other's cores in busy waits.
"""

import os


def set_thread_environment(num_threads: int) -> int:
    """Set the OpenMP variables of this process and return the number of threads (all cores for 0)."""
    count = num_threads or os.cpu_count() or 1
    os.environ["OMP_NUM_THREADS"] = str(count)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    return count
