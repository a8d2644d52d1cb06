"""Batches of ever new sizes do not make the process grow without end. In a process of its own: the limits are read once."""

import subprocess
import sys

PROGRAM = """
from shared.settings.shape_caches import set_shape_cache_environment
set_shape_cache_environment()
import psutil, torch
from shared.modeling.linear import make_linear
torch.set_num_threads(1)
layers = [make_linear(torch.randn(size, 384), None) for size in (384, 768, 1152, 1536)]

def grow(shapes):
    before = psutil.Process().memory_info().rss
    for num_tokens in shapes:
        for layer in layers:
            layer(torch.ones(num_tokens, 384))
    return (psutil.Process().memory_info().rss - before) // 2**20

print(grow(range(100, 300, 4)), grow(range(101, 300, 4)), grow(range(102, 300, 4)))
"""


def test_memory_stays_when_every_batch_has_another_size() -> None:
    answer = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    first, _, last = map(int, answer.stdout.split())
    assert last < first / 3  # MiB; without the limits 50 new sizes take as much as the 50 before, up to 256 of them
