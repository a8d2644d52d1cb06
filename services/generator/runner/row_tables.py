"""The runner's state by row, on the device: block table, last sampled token, sampling parameters.

Changed by the entries that a StepPlan brings, read when the step's inputs are made. Rows are handed out by the Scheduler.
"""

import torch
from torch import Tensor

from services.generator.core.plan import StepPlan


class RowTables:
    """Fixed tensors with a line for each of `max_num_seqs` rows."""

    def __init__(self, max_num_seqs: int, max_blocks: int, device: torch.device) -> None:
        self.block_table = torch.zeros(max_num_seqs, max_blocks, dtype=torch.int64, device=device)
        self.last_token = torch.zeros(max_num_seqs, dtype=torch.int64, device=device)
        self.temperature = torch.zeros(max_num_seqs, dtype=torch.float32, device=device)
        self.top_p = torch.ones(max_num_seqs, dtype=torch.float32, device=device)
        self.top_k = torch.zeros(max_num_seqs, dtype=torch.int64, device=device)
        self.seed = torch.zeros(max_num_seqs, dtype=torch.int64, device=device)

    def apply(self, plan: StepPlan) -> None:
        """Enter the plan's new rows and new blocks."""
        if len(plan.new_rows.rows):
            rows = self._to_device(plan.new_rows.rows)
            self.temperature[rows] = torch.from_numpy(plan.new_rows.temperature).to(self.temperature.device)
            self.top_p[rows] = torch.from_numpy(plan.new_rows.top_p).to(self.top_p.device)
            self.top_k[rows] = self._to_device(plan.new_rows.top_k)
            self.seed[rows] = self._to_device(plan.new_rows.seed)
        if len(plan.block_updates.rows):
            where = (self._to_device(plan.block_updates.rows), self._to_device(plan.block_updates.columns))
            self.block_table[where] = self._to_device(plan.block_updates.block_ids)

    def _to_device(self, array: object) -> Tensor:
        return torch.as_tensor(array, dtype=torch.int64).to(self.block_table.device, non_blocking=True)
