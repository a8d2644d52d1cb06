"""Texts as rows of token ids, on the device once, and pairs of rows put together there: nothing is tokenized while training.

Called by `models`. Frames a pair as BERT's tokenizer does: [CLS] query [SEP] passage [SEP].
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class TokenTable:
    """Token ids of texts, one text a row.

    Args:
        ids: [N, L] int64 on the device, rows filled up with zeros.
        lengths: [N] int64 on the CPU, so that a batch's width is known without waiting for the device.
    """

    ids: Tensor
    lengths: Tensor

    def rows(self, places: Tensor) -> "TokenTable":
        """The rows at `places` [M] on the CPU, in that order."""
        return TokenTable(self.ids[places.to(self.ids.device, non_blocking=True)], self.lengths[places])


@dataclass(frozen=True)
class Frame:
    """A tokenizer's ids around the texts of a pair, and the most tokens of a whole pair."""

    cls_id: int
    sep_id: int
    max_length: int


def tokenize(tokenizer: Any, texts: Sequence[str], max_tokens: int, device: str) -> TokenTable:
    """Without special tokens, each text's first `max_tokens`."""
    rows = tokenizer(list(texts), add_special_tokens=False, truncation=True, max_length=max_tokens)["input_ids"]
    lengths = torch.tensor([len(row) for row in rows])
    ids = torch.zeros(len(rows), int(lengths.max()), dtype=torch.int64)
    for place, row in enumerate(rows):
        ids[place, : len(row)] = torch.tensor(row)
    return TokenTable(ids.to(device), lengths)


def pair_inputs(queries: TokenTable, passages: TokenTable, frame: Frame) -> dict[str, Tensor]:
    """What a model of pairs takes, one row for each query and the passage in the same row, cut at the passage's end.

    Returns:
        `input_ids`, `token_type_ids` and `attention_mask`, each [N, longest pair] int64.
    """
    device = queries.ids.device
    query_counts = queries.lengths[:, None]
    total_counts = query_counts + torch.minimum(passages.lengths[:, None], frame.max_length - 3 - query_counts) + 3
    place = torch.arange(int(total_counts.max()), device=device)[None, :]
    query_lengths, totals = query_counts.to(device, non_blocking=True), total_counts.to(device, non_blocking=True)
    # [CLS] q ... q [SEP] p ... p [SEP] 0 ... 0
    #   0   1 ... nq  nq+1 ...       total-1
    query_ids = queries.ids.gather(1, (place - 1).clamp(0, queries.ids.shape[1] - 1).expand(len(queries.ids), -1))
    passage_ids = passages.ids.gather(1, (place - query_lengths - 2).clamp(0, passages.ids.shape[1] - 1))
    ids = torch.where(place <= query_lengths, query_ids, passage_ids)
    ids = torch.where((place == query_lengths + 1) | (place == totals - 1), frame.sep_id, ids)
    ids = torch.where(place == 0, frame.cls_id, ids)
    is_there = place < totals
    return {
        "input_ids": torch.where(is_there, ids, 0),
        "token_type_ids": ((place > query_lengths + 1) & is_there).to(torch.int64),
        "attention_mask": is_there.to(torch.int64),
    }
