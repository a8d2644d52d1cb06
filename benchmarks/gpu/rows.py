"""The table of the GPU benchmark: its rows by name, with what they are compared with.

Llama-3-8B shape in bf16 on one H200. A floor is the time of the products alone in a CUDA graph, and of the bytes of KV and adapters
at the speed of a device copy; vLLM 0.26.0 was measured on the same machine with the same workload.
"""

from typing import NamedTuple


class DecodeRow(NamedTuple):
    """A decode step of `num_rows` rows over `num_adapters` adapters, in milliseconds; None where nothing was measured."""

    num_adapters: int
    num_rows: int
    floor: float | None
    vllm: float
    goal: float

    @property
    def name(self) -> str:
        """As in the table."""
        adapters = {0: "base", 1: "1 adapter"}.get(self.num_adapters, f"{self.num_adapters} adapters")
        return f"{adapters}, B={self.num_rows}"


BASE_ROWS = (
    DecodeRow(0, 1, 3.92, 4.89, 4.3),
    DecodeRow(0, 8, None, 4.90, 4.4),
    DecodeRow(0, 32, None, 5.44, 4.8),
    DecodeRow(0, 64, 4.59, 5.82, 5.0),
    DecodeRow(0, 128, None, 7.08, 6.3),
    DecodeRow(0, 256, 8.37, 10.41, 9.0),
)
ADAPTER_ROWS = (
    DecodeRow(1, 1, 3.94, 7.73, 4.6),
    DecodeRow(1, 64, 4.61, 9.45, 5.4),
    DecodeRow(8, 8, None, 10.15, 5.0),
    DecodeRow(8, 64, 4.75, 12.03, 5.6),
    DecodeRow(32, 32, None, 19.50, 5.8),
    DecodeRow(32, 64, 5.23, 20.86, 6.2),
    DecodeRow(64, 64, 5.87, 32.83, 7.0),
    DecodeRow(64, 128, None, 30.23, 8.3),
)


class PrefillRow(NamedTuple):
    """Prompts at once, in thousands of tokens a second; the adapters are spread over the prompts."""

    num_prompts: int
    num_adapters: int
    limit: float | None
    vllm: float | None
    goal: float | None

    @property
    def name(self) -> str:
        """As in the table."""
        adapters = {0: "", 1: ", 1 adapter"}.get(self.num_adapters, f", {self.num_adapters} adapters")
        return f"prefill, {self.num_prompts} x {PREFILL_LEN}{adapters}"


PREFILL_LEN = 2048
PREFILL_ROWS = (PrefillRow(16, 0, 53.1, 43.3, 47.0), PrefillRow(1, 0, 53.1, 39.4, 43.0))
ADAPTER_PREFILL_ROWS = (PrefillRow(16, 1, None, None, None), PrefillRow(16, 8, None, None, None))
