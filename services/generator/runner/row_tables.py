"""The runner's state by row, on the device: where a row's KV is and which token it sampled last.

Changed by the entries that a StepPlan brings, read when the step's inputs are made. Rows are handed out by the Scheduler; one more
line, behind theirs, is that of padding.
"""

import numpy as np
import torch

from services.generator.core.plan import BlockUpdates
from shared.modeling.transfers import to_device


class RowTables:
    """Fixed tensors with a line for each of `max_num_seqs` rows and one for padding."""

    def __init__(self, max_num_seqs: int, max_blocks: int, device: torch.device) -> None:
        self.spare_row = max_num_seqs
        self.block_table = torch.zeros(max_num_seqs + 1, max_blocks, dtype=torch.int32, device=device)
        self.last_token = torch.zeros(max_num_seqs + 1, dtype=torch.int64, device=device)

    def apply(self, updates: BlockUpdates) -> None:
        """Enter new blocks."""
        if len(updates.rows):
            table = to_device(np.stack([updates.rows, updates.columns, updates.block_ids]), self.block_table.device)
            rows, columns, blocks = table
            self.block_table[rows.long(), columns.long()] = blocks
