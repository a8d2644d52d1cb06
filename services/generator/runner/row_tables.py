"""The runner's state by row, on the device: where a row's KV is and which token it sampled last.

Changed by the entries that a StepPlan brings, read when the step's inputs are made. Rows are handed out by the Scheduler.
"""

import torch
from torch import Tensor

from services.generator.core.plan import BlockUpdates


class RowTables:
    """Fixed tensors with a line for each of `max_num_seqs` rows."""

    def __init__(self, max_num_seqs: int, max_blocks: int, device: torch.device) -> None:
        self.block_table = torch.zeros(max_num_seqs, max_blocks, dtype=torch.int64, device=device)
        self.last_token = torch.zeros(max_num_seqs, dtype=torch.int64, device=device)

    def apply(self, updates: BlockUpdates) -> None:
        """Enter new blocks."""
        if len(updates.rows):
            where = (self._to_device(updates.rows), self._to_device(updates.columns))
            self.block_table[where] = self._to_device(updates.block_ids)

    def _to_device(self, array: object) -> Tensor:
        return torch.as_tensor(array, dtype=torch.int64).to(self.block_table.device, non_blocking=True)
