"""The sampling parameters of all rows, on the device: fixed tables that a plan's new rows are written into.

Owned by the Sampler. Rows are handed out by the Scheduler; a row's line is complete from the step in which the row begins.
"""

import numpy as np
import torch
from torch import Tensor

from services.generator.core.plan import ANY_TOKEN, MASK_BITS, NUM_RECENT, ROW_FLOATS, ROW_INTEGERS, IntArray, RowStates
from services.generator.core.request import MAX_BAD_WORDS, MAX_LOGIT_BIAS, MAX_STOP_TOKEN_IDS
from shared.modeling.transfers import to_device

FILLERS = {"bias_ids": 0, "bias_values": 0, "stop_ids": 0, "bad_prefixes": ANY_TOKEN, "bad_lasts": ANY_TOKEN}
"""What stands in the lines of the tables of lists where a list is over."""


class SamplingTables:
    """See `RowStates` for what each table holds; a table's first dimension is the row. Seeds are the Sampler's own.

    `counts` is how often each token is in the row's output and `is_in_prompt` whether it is in the prompt, for penalties.
    """

    def __init__(self, max_num_seqs: int, vocab_size: int, device: torch.device) -> None:
        def table(*shape: int, fill: float = 0, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.full((max_num_seqs, *shape), fill, dtype=dtype, device=device)

        self._floats = torch.zeros(len(ROW_FLOATS), max_num_seqs, device=device)
        self.temperature, self.top_p, self.min_p = self._floats[:3].unbind()
        self.repetition_penalty, self.presence_penalty, self.frequency_penalty = self._floats[3:].unbind()
        self._integers = torch.zeros(len(ROW_INTEGERS), max_num_seqs, dtype=torch.int64, device=device)
        self.top_k, self.min_position, self.num_stop_ids = self._integers.unbind()
        self.bias_ids = table(MAX_LOGIT_BIAS, dtype=torch.int64)
        self.bias_values = table(MAX_LOGIT_BIAS)
        self.stop_ids = table(MAX_STOP_TOKEN_IDS, dtype=torch.int64)
        self.bad_prefixes = table(MAX_BAD_WORDS, NUM_RECENT, fill=ANY_TOKEN, dtype=torch.int64)
        self.bad_lasts = table(MAX_BAD_WORDS, fill=ANY_TOKEN, dtype=torch.int64)
        self.recent = table(NUM_RECENT, fill=ANY_TOKEN, dtype=torch.int64)
        self.allowed = table(-(-vocab_size // MASK_BITS), fill=-1, dtype=torch.int32)
        self.counts = table(vocab_size, dtype=torch.int32)
        self.is_in_prompt = table(vocab_size, dtype=torch.bool)
        self._is_filled = {name: np.zeros(max_num_seqs, np.bool_) for name in (*FILLERS, "allowed")}

    def apply(self, new: RowStates) -> None:
        """Write the lines of rows that begin."""
        if len(new.rows) == 0:
            return
        rows = self._to_device(new.rows)
        self._floats[:, rows] = self._to_device(new.floats)
        self._integers[:, rows] = self._to_device(new.integers)
        for name, filler in FILLERS.items():
            if self._changes(name, new.rows, has_values=getattr(new, name).shape[1] > 0):
                self._write_padded(getattr(self, name), rows, getattr(new, name), filler)
        if self._changes("allowed", new.rows, has_values=new.allowed is not None):
            self.allowed[rows] = -1 if new.allowed is None else self._to_device(new.allowed)
        if len(new.recent):
            self.recent[rows] = self._to_device(new.recent).long()
        if len(new.seen_rows):
            self._write_seen(new, rows)

    def note_sampled(self, rows: Tensor, token_ids: Tensor) -> None:
        """Remember the tokens that `rows` [N] sampled, for their penalties."""
        self.counts[rows, token_ids] += 1

    def shift_recent(self, rows: Tensor, token_ids: Tensor) -> None:
        """Remember them as the last ones, for their bad words."""
        self.recent[rows] = torch.cat([self.recent[rows][:, 1:], token_ids[:, None]], dim=1)

    def _changes(self, name: str, rows: IntArray, *, has_values: bool) -> bool:
        """Whether the lines of `rows` are not what they were; most requests have no lists, nor had those before them."""
        had_values = self._is_filled[name][rows].any()
        self._is_filled[name][rows] = has_values
        return bool(has_values or had_values)

    def _write_padded(self, table: Tensor, rows: Tensor, values: np.ndarray, filler: float) -> None:
        table[rows] = filler
        if values.shape[1]:
            table[rows, : values.shape[1]] = self._to_device(values).to(table.dtype)

    def _write_seen(self, new: RowStates, rows: Tensor) -> None:
        self.counts[rows] = 0
        self.is_in_prompt[rows] = False
        seen = self._to_device(np.stack([new.seen_rows, new.seen_ids, new.is_output])).long()  # [3, tokens seen]
        self.counts.index_put_((seen[0], seen[1]), seen[2].to(self.counts.dtype), accumulate=True)
        in_prompt = self._to_device(np.stack([new.seen_rows, new.seen_ids])[:, ~new.is_output]).long()
        self.is_in_prompt[in_prompt[0], in_prompt[1]] = True

    def _to_device(self, array: np.ndarray) -> Tensor:
        return to_device(array, self.temperature.device)
