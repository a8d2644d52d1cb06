"""The table of the GPU benchmark: its rows by name, with what they are compared with, by the bank of adapters that they need.

Llama-3-8B shape in bf16 on one H200. A floor is the time of the products alone in a CUDA graph, and of the bytes of KV and adapters
at the speed of a device copy; vLLM 0.26.0 was measured on the same machine with the same workload.
"""

from collections.abc import Mapping
from typing import NamedTuple

PREFILL_LEN = 2048
NUM_SLOTS = 64
ADAPTERS = {f"a{index}": 16 for index in range(NUM_SLOTS)}
"""name: rank."""

RANKS = (8, 16, 32, 64)
RANKED = {f"r{rank}-{index}": rank for rank in RANKS for index in range(len(RANKS))}


class DecodeRow(NamedTuple):
    """A decode step in milliseconds, whose rows use the adapters in turn; None where nothing was measured.

    Attributes:
        sampling: fields of the requests that stand in place of greedy ones.
    """

    name: str
    num_rows: int
    adapters: list[str]
    floor: float | None = None
    vllm: float | None = None
    goal: float | None = None
    sampling: Mapping[str, float] = {}


class PrefillRow(NamedTuple):
    """Prompts of `PREFILL_LEN` at once, in thousands of tokens a second; likewise."""

    name: str
    num_prompts: int
    adapters: list[str]
    limit: float | None = None
    vllm: float | None = None
    goal: float | None = None


class Bank(NamedTuple):
    """An engine: what it is started with, and the rows that it is timed with.

    Attributes:
        ranks: of its adapters by name; none means no bank.
        max_rows: the most rows of a step.
    """

    start: str
    ranks: dict[str, int]
    max_rows: int
    decodes: list[DecodeRow]
    prefills: list[PrefillRow]

    @property
    def names(self) -> list[str]:
        """Of all its rows."""
        rows = [*(row.name for row in self.decodes), *(row.name for row in self.prefills)]
        return [self.start, *rows]


def _decode(num_adapters: int, num_rows: int, floor: float | None, vllm: float, goal: float) -> DecodeRow:
    adapters = {0: "base", 1: "1 adapter"}.get(num_adapters, f"{num_adapters} adapters")
    return DecodeRow(f"{adapters}, B={num_rows}", num_rows, list(ADAPTERS)[:num_adapters], floor, vllm, goal)


def _prefill(num_prompts: int, suffix: str, *compared: float | None, num_adapters: int = 0) -> PrefillRow:
    name = f"prefill, {num_prompts} x {PREFILL_LEN}{suffix}, k tok/s"
    return PrefillRow(name, num_prompts, list(ADAPTERS)[:num_adapters], *compared)


def _rank(ranks: tuple[int, ...]) -> DecodeRow:
    """As many adapters whatever the ranks: one of each of several, or four of one."""
    adapters = [f"r{rank}-{index}" for index in range(len(RANKS)) for rank in ranks][: len(RANKS)]
    shown = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
    return DecodeRow(f"{shown} in a bank of rank {max(RANKS)}, B=64", 64, adapters)


BANKS = (
    Bank(
        "start to ready, s",
        {},
        256,
        [
            _decode(0, 1, 3.92, 4.89, 4.3),
            _decode(0, 8, None, 4.90, 4.4),
            _decode(0, 32, None, 5.44, 4.8),
            _decode(0, 64, 4.59, 5.82, 5.0),
            _decode(0, 128, None, 7.08, 6.3),
            _decode(0, 256, 8.37, 10.41, 9.0),
            DecodeRow("base, B=64, drawn", 64, [], sampling={"temperature": 0.8}),
            DecodeRow("base, B=64, drawn from top-p 0.95", 64, [], sampling={"temperature": 0.8, "top_p": 0.95}),
        ],
        [_prefill(16, "", 53.1, 43.3, 47.0), _prefill(1, "", 53.1, 39.4, 43.0)],
    ),
    Bank(
        f"start to ready with {NUM_SLOTS} adapters, s",
        ADAPTERS,
        256,
        [
            DecodeRow("bank installed, no row uses it, B=64", 64, [], 4.59, 5.92),
            _decode(1, 1, 3.94, 7.73, 4.6),
            _decode(1, 64, 4.61, 9.45, 5.4),
            _decode(8, 8, None, 10.15, 5.0),
            _decode(8, 64, 4.75, 12.03, 5.6),
            _decode(32, 32, None, 19.50, 5.8),
            _decode(32, 64, 5.23, 20.86, 6.2),
            _decode(64, 64, 5.87, 32.83, 7.0),
            _decode(64, 128, None, 30.23, 8.3),
        ],
        [
            _prefill(16, ", bank idle", 53.1, 42.7, 47.0),
            _prefill(1, ", bank idle", 53.1, 33.1, 43.0),
            _prefill(16, ", 1 adapter", num_adapters=1),
            _prefill(16, ", 8 adapters", num_adapters=8),
        ],
    ),
    Bank(
        f"start to ready with a bank of rank {max(RANKS)}, s",
        RANKED,
        64,
        [*(_rank((rank,)) for rank in RANKS), _rank(RANKS)],
        [],
    ),
)
