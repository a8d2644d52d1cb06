"""The sampling parameters of all rows, on the device: fixed tables that a plan's new rows are written into.

Owned by the Sampler. Rows are handed out by the Scheduler; a row's line is complete from the step in which the row begins.
"""

import numpy as np
import torch
from torch import Tensor

from services.generator.core.plan import ANY_TOKEN, MASK_BITS, NUM_RECENT, RowStates
from services.generator.core.request import MAX_BAD_WORDS, MAX_LOGIT_BIAS, MAX_STOP_TOKEN_IDS
from shared.modeling.transfers import to_device


class SamplingTables:
    """See `RowStates` for what each table holds; a table's first dimension is the row.

    `counts` is how often each token is in the row's output and `is_in_prompt` whether it is in the prompt, for penalties.
    """

    def __init__(self, max_num_seqs: int, vocab_size: int, device: torch.device) -> None:
        def table(*shape: int, fill: float = 0, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.full((max_num_seqs, *shape), fill, dtype=dtype, device=device)

        self.temperature = table()
        self.top_p = table(fill=1)
        self.top_k = table(dtype=torch.int64)
        self.min_p = table()
        self.seed = table(dtype=torch.int64)
        self.repetition_penalty = table(fill=1)
        self.presence_penalty = table()
        self.frequency_penalty = table()
        self.min_position = table(dtype=torch.int64)
        self.bias_ids = table(MAX_LOGIT_BIAS, dtype=torch.int64)
        self.bias_values = table(MAX_LOGIT_BIAS)
        self.stop_ids = table(MAX_STOP_TOKEN_IDS, dtype=torch.int64)
        self.num_stop_ids = table(dtype=torch.int64)
        self.bad_prefixes = table(MAX_BAD_WORDS, NUM_RECENT, fill=ANY_TOKEN, dtype=torch.int64)
        self.bad_lasts = table(MAX_BAD_WORDS, fill=ANY_TOKEN, dtype=torch.int64)
        self.recent = table(NUM_RECENT, fill=ANY_TOKEN, dtype=torch.int64)
        self.allowed = table(-(-vocab_size // MASK_BITS), fill=-1, dtype=torch.int32)
        self.counts = table(vocab_size, dtype=torch.int32)
        self.is_in_prompt = table(vocab_size, dtype=torch.bool)

    def apply(self, new: RowStates) -> None:
        """Write the lines of rows that begin."""
        if len(new.rows) == 0:
            return
        rows = self._to_device(new.rows)
        for name in (
            "temperature",
            "top_p",
            "top_k",
            "min_p",
            "seed",
            "repetition_penalty",
            "presence_penalty",
            "frequency_penalty",
            "min_position",
            "num_stop_ids",
            "recent",
        ):
            table: Tensor = getattr(self, name)
            table[rows] = self._to_device(getattr(new, name)).to(table.dtype)
        for name, filler in (
            ("bias_ids", 0),
            ("bias_values", 0),
            ("stop_ids", 0),
            ("bad_prefixes", ANY_TOKEN),
            ("bad_lasts", ANY_TOKEN),
        ):
            self._write_padded(getattr(self, name), rows, getattr(new, name), filler)
        self.allowed[rows] = -1 if new.allowed is None else self._to_device(new.allowed)
        if len(new.seen_rows):
            self._write_seen(new, rows)

    def note_sampled(self, rows: Tensor, token_ids: Tensor) -> None:
        """Remember the tokens that `rows` [N] sampled, for their penalties."""
        self.counts[rows, token_ids] += 1

    def shift_recent(self, rows: Tensor, token_ids: Tensor) -> None:
        """Remember them as the last ones, for their bad words."""
        self.recent[rows] = torch.cat([self.recent[rows][:, 1:], token_ids[:, None]], dim=1)

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
