"""A device in numpy for scheduler tests: it obeys plans through the block table only, so wrong blocks give wrong tokens.

The next token is a hash of all tokens that the row's block table leads to. Results are handed out late and in order, and a
token that the plan says is on the device is read from the device's own memory, never from the host.
"""

import zlib
from dataclasses import dataclass

import numpy as np

from services.generator.core.plan import TOKEN_ON_DEVICE, StepPlan, StepResult

UNWRITTEN = -7
KV_STEP = 1_000
"""An adapter that changes keys and values adds this, times its `kv_ids` entry, to every token that it writes."""


@dataclass
class LateResult:
    """A step that was launched; reading its result is what commits it."""

    step: StepResult
    was_read: bool = False

    def result(self) -> StepResult:
        self.was_read = True
        return self.step


class FakeRunner:
    """Executes plans at once but keeps what it sampled to itself until asked."""

    def __init__(self, num_blocks: int, block_size: int, max_num_seqs: int, vocab_size: int) -> None:
        self._kv = np.full(num_blocks * block_size, UNWRITTEN, np.int64)
        self._block_table = np.zeros((max_num_seqs, num_blocks), np.int64)
        self._last_token = np.full(max_num_seqs, UNWRITTEN, np.int64)
        self._bank: dict[int, int] = {}
        self.kv_ids: dict[int, int] = {}
        self._block_size = block_size
        self._vocab_size = vocab_size
        self.num_steps = 0
        self.max_tokens_in_step = 0
        self.max_rows_in_step = 0

    def execute(self, plan: StepPlan) -> LateResult:
        updates = plan.block_updates
        self._block_table[updates.rows, updates.columns] = updates.block_ids
        self._bank.update(plan.adapter_copies)
        adapters = [self._bank[slot] if slot >= 0 else None for slot in plan.adapter_slots]
        slots_of = []
        offset = 0
        for row, start, length, adapter in zip(
            plan.rows, plan.num_computed_tokens, plan.num_new_tokens, adapters, strict=True
        ):
            tokens = plan.token_ids[offset : offset + length].astype(np.int64)
            tokens[tokens == TOKEN_ON_DEVICE] = self._last_token[row]
            assert (tokens >= 0).all(), "a token that nobody sampled was read"
            slots = self._slots(row, start + length)
            self._kv[slots[start:]] = tokens + KV_STEP * self.kv_ids.get(
                adapter, 0
            )  # as in a layer: all rows write before any reads
            slots_of.append(slots)
            offset += length
        sampled = [next_token(self._kv[slots_of[i]].tolist(), adapters[i], self._vocab_size) for i in plan.sampled]
        self._last_token[plan.rows[plan.sampled]] = sampled
        self.num_steps += 1
        self.max_tokens_in_step = max(self.max_tokens_in_step, plan.num_tokens)
        self.max_rows_in_step = max(self.max_rows_in_step, len(plan.rows))
        return LateResult(StepResult(plan.step_id, np.array(sampled, np.int32)))

    def check_device(self) -> None:
        pass

    def _slots(self, row: int, num_tokens: int) -> np.ndarray:
        positions = np.arange(num_tokens)
        return self._block_table[row, positions // self._block_size] * self._block_size + positions % self._block_size


def next_token(kv: list[int], adapter: int | None, vocab_size: int) -> int:
    """What the fake model says after tokens whose keys and values are `kv`."""
    return zlib.crc32(repr((kv, adapter)).encode()) % vocab_size


def solo_output(
    prompt: list[int],
    max_tokens: int,
    stop_ids: frozenset[int],
    vocab_size: int,
    *,
    adapter: int | None = None,
    kv_id: int = 0,
) -> list[int]:
    """What the fake model generates for `prompt` alone, computed without any scheduler."""
    output: list[int] = []
    while len(output) < max_tokens:
        kv = [token + KV_STEP * kv_id for token in prompt + output]
        output.append(next_token(kv, adapter, vocab_size))
        if output[-1] in stop_ids:
            break
    return output
