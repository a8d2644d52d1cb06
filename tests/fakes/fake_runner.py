"""A device in numpy for scheduler tests: it obeys plans through the block table only, so wrong blocks give wrong tokens.

The next token is a hash of all tokens that the row's block table leads to. Results are handed out late and in order, and a
token that the plan says is on the device is read from the device's own memory, never from the host. A step is sampled in its own
phase, before the next is launched; masks can be made only by a host that has read the results of all steps before.
The rows of an image are numbers made of its pixels, which stand in place of its placeholders' ids.
"""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from services.generator.core.images import PromptImage
from services.generator.core.launch import Launch
from services.generator.core.plan import TOKEN_ON_DEVICE, IntArray, StepPlan, StepResult

UNWRITTEN = -7
IMAGE_BASE = 1_000_000
"""Rows of images are above all ids."""

KV_STEP = 1_000
"""An adapter that changes keys and values adds this, times its `kv_ids` entry, to every token that it writes."""


@dataclass
class FakeLaunched:
    """A step up to its logits: keys and values of the rows that sample, and their adapters."""

    plan: StepPlan
    contexts: list[tuple[list[int], int | None]]
    is_sampled: bool = False


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

    def __init__(
        self, num_blocks: int, block_size: int, max_num_seqs: int, vocab_size: int, *, num_image_rows: int = 0
    ) -> None:
        self._kv = np.full(num_blocks * block_size, UNWRITTEN, np.int64)
        self._block_table = np.zeros((max_num_seqs, num_blocks), np.int64)
        self._last_token = np.full(max_num_seqs, UNWRITTEN, np.int64)
        self._bank: dict[int, int] = {}
        self._image_rows = np.full(num_image_rows, UNWRITTEN, np.int64)
        self.encoded: list[list[bytes]] = []
        """Of each step that encodes: what it encodes, by digest."""
        self.kv_ids: dict[int, int] = {}
        self._block_size = block_size
        self._vocab_size = vocab_size
        self._launched: FakeLaunched | None = None
        self._results: list[LateResult] = []
        self.num_steps = 0
        self.launches: dict[Launch, int] = {}
        self.num_ahead = 0
        self.max_tokens_in_step = 0
        self.max_rows_in_step = 0

    def execute(self, plan: StepPlan) -> FakeLaunched:
        assert self._launched is None or self._launched.is_sampled, (
            "a step was launched before the last one was sampled"
        )
        self.num_ahead += any(not result.was_read for result in self._results)
        updates = plan.block_updates
        self._block_table[updates.rows, updates.columns] = updates.block_ids
        self._bank.update(plan.adapter_copies)
        adapters = [self._bank[slot] if slot >= 0 else None for slot in plan.adapter_slots]
        ids = self._embed(plan)
        slots_of = []
        offset = 0
        for row, start, length, adapter in zip(
            plan.rows, plan.num_computed_tokens, plan.num_new_tokens, adapters, strict=True
        ):
            tokens = ids[offset : offset + length]
            tokens[tokens == TOKEN_ON_DEVICE] = self._last_token[row]
            assert (tokens >= 0).all(), "a token that nobody sampled was read"
            slots = self._slots(row, start + length)
            tokens += KV_STEP * self.kv_ids.get(adapter, 0)
            self._kv[slots[start:]] = tokens  # as in a layer: all rows write before any reads
            slots_of.append(slots)
            offset += length
        self.num_steps += 1
        self.max_tokens_in_step = max(self.max_tokens_in_step, plan.num_tokens)
        self.max_rows_in_step = max(self.max_rows_in_step, len(plan.rows))
        contexts = [(self._kv[slots_of[i]].tolist(), adapters[i]) for i in plan.sampled]
        self._launched = FakeLaunched(plan, contexts)
        return self._launched

    def sample(self, step: FakeLaunched, masks: IntArray | None) -> LateResult:
        assert step is self._launched, "steps were sampled out of order"
        assert not step.is_sampled
        assert (masks is not None) == step.plan.features.has_grammars
        if masks is not None:
            assert all(result.was_read for result in self._results), "masks were made of tokens that nobody has read"
        step.is_sampled = True
        allowed = [None] * len(step.contexts) if masks is None else [_ids(mask, self._vocab_size) for mask in masks]
        sampled = [
            next_token(kv, adapter, self._vocab_size, ids)
            for (kv, adapter), ids in zip(step.contexts, allowed, strict=True)
        ]
        plan = step.plan
        self._last_token[plan.sampled_rows] = sampled
        self._results = [result for result in self._results if not result.was_read]
        self._results.append(LateResult(StepResult(plan.step_id, np.array(sampled, np.int32))))
        return self._results[-1]

    def check_device(self) -> None:
        pass

    def _embed(self, plan: StepPlan) -> np.ndarray:
        """Ids of the step's tokens, with rows of images in place of placeholders."""
        ids = plan.token_ids.astype(np.int64)
        if plan.images is None:
            return ids
        for image, rows in plan.images.encodes:
            self._image_rows[rows] = image_values(image)
        if plan.images.encodes:
            self.encoded.append([image.digest for image, _ in plan.images.encodes])
        ids[plan.images.tokens] = self._image_rows[plan.images.rows]
        return ids

    def _slots(self, row: int, num_tokens: int) -> np.ndarray:
        positions = np.arange(num_tokens)
        return self._block_table[row, positions // self._block_size] * self._block_size + positions % self._block_size


def _ids(mask: np.ndarray, vocab_size: int) -> list[int]:
    return [token_id for token_id in range(vocab_size) if mask[token_id // 32] >> (token_id % 32) & 1]


def next_token(kv: list[int], adapter: int | None, vocab_size: int, allowed: Sequence[int] | None = None) -> int:
    """What the fake model says after tokens whose keys and values are `kv`, if it may say only what is `allowed`."""
    choices = range(vocab_size) if allowed is None else allowed
    return choices[zlib.crc32(repr((kv, adapter)).encode()) % len(choices)]


def image_values(image: PromptImage) -> list[int]:
    """What the fake encoder makes of an image."""
    return [IMAGE_BASE + zlib.crc32(image.pixels.data + bytes([row])) for row in range(image.num_rows)]


def embedded(prompt: list[int], images: Sequence[PromptImage]) -> list[int]:
    """A prompt with the rows of its images in place of placeholders."""
    tokens = list(prompt)
    for image in images:
        tokens[image.position : image.end] = image_values(image)
    return tokens


def solo_output(
    prompt: list[int],
    max_tokens: int,
    stop_ids: frozenset[int],
    vocab_size: int,
    allowed: Callable[[list[int]], Sequence[int]] | None = None,
    *,
    adapter: int | None = None,
    kv_id: int = 0,
) -> list[int]:
    """What the fake model generates for `prompt` alone, computed without any scheduler.

    Args:
        allowed: the ids that may follow an output.
    """
    output: list[int] = []
    while len(output) < max_tokens:
        kv = [token + KV_STEP * kv_id for token in prompt + output]
        output.append(next_token(kv, adapter, vocab_size, None if allowed is None else allowed(output)))
        if output[-1] in stop_ids:
            break
    return output
