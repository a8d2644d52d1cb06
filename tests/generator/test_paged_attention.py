"""The reference attention against softmax written out row by row in float64."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from services.generator.core.plan import BlockUpdates, StepPlan
from services.generator.layers.reference_attention import attend
from services.generator.layers.reference_kernels import ReferenceKernels
from services.generator.runner.reference_inputs import attention_groups
from services.generator.runner.row_tables import RowTables
from services.generator.runner.step_inputs import make_forward_batch
from services.generator.runner.step_layout import StepLayout, StepShape
from services.generator.scheduler.row_states import row_states, union

BLOCK, HKV, GROUP, DIM = 4, 2, 3, 8
WINDOWS = (None, 1, 6)


def make_plan(lengths, starts, tables, rng):
    """A plan over scattered blocks; `tables` gets them."""
    order = sorted(range(len(lengths)), key=lambda i: 0 if lengths[i] == 1 and starts[i] > 0 else lengths[i])
    lengths, starts = [lengths[i] for i in order], [starts[i] for i in order]
    rows = rng.permutation(16)[: len(lengths)]
    blocks = iter(rng.permutation(200).tolist())
    entries = [
        (row, column, next(blocks))
        for row, start, length in zip(rows, starts, lengths, strict=True)
        for column in range(-(-(start + length) // BLOCK))
    ]
    table = np.array(entries, np.int32)
    none = np.zeros(0, np.int32)
    plan = StepPlan(
        step_id=0,
        rows=rows.astype(np.int32),
        num_decodes=sum(length == 1 and start > 0 for length, start in zip(lengths, starts, strict=True)),
        num_new_tokens=np.array(lengths, np.int32),
        num_computed_tokens=np.array(starts, np.int32),
        token_ids=np.zeros(sum(lengths), np.int32),
        sampled=none,
        new_rows=row_states([], none, vocab_size=10),
        block_updates=BlockUpdates(table[:, 0], table[:, 1], table[:, 2]),
        features=union([]),
        scored=none,
        scored_ids=none,
        num_prompt_logprobs=0,
        adapter_slots=np.full(len(rows), -1, np.int32),
        adapter_copies=[],
    )
    tables.apply(plan.block_updates)
    return plan


def naive(query, keys, values, slots):
    """Softmax attention of one query over the keys at `slots`, float64."""
    k, v = keys[slots].double(), values[slots].double()
    out = []
    for head in range(HKV * GROUP):
        scores = (k[:, head // GROUP] @ query[head].double()) / DIM**0.5
        out.append(torch.softmax(scores, 0) @ v[:, head // GROUP])
    return torch.cat(out)


@pytest.mark.parametrize("window_index", range(len(WINDOWS)))
@pytest.mark.parametrize(
    ("lengths", "starts"),
    [
        ([1], [0]),
        ([1], [7]),
        ([1, 1, 1], [3, 4, 60]),
        ([5], [0]),
        ([4, 1, 9], [4, 11, 0]),
        ([1, 1, 2, 3, 17, 33, 1], [1, 30, 0, 13, 2, 0, 0]),
    ],
)
def test_against_softmax_written_out(lengths, starts, window_index):
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    tables = RowTables(16, 64, torch.device("cpu"))
    plan = make_plan(lengths, starts, tables, rng)
    layout = StepLayout(StepShape(plan.num_tokens, plan.num_decodes, len(plan.rows), 0, None), 0, 0, tables.spare_row)
    batch = make_forward_batch(torch.from_numpy(layout.pack(plan)), layout, tables, ReferenceKernels(), BLOCK)
    groups = attention_groups(plan, tables.block_table, BLOCK, dtype=torch.float32, windows=WINDOWS)
    batch = replace(batch, groups=groups)
    keys, values = torch.randn(2, 200 * BLOCK, HKV, DIM)
    others = torch.ones(len(keys), dtype=torch.bool)
    for row, end in zip(plan.rows, plan.num_computed_tokens + plan.num_new_tokens, strict=True):
        others[tables.block_table[int(row), torch.arange(end) // BLOCK] * BLOCK + torch.arange(end) % BLOCK] = False
    keys[others] = values[others] = torch.nan  # what other requests may have left
    query = torch.randn(plan.num_tokens, HKV * GROUP, DIM)
    out = attend(query, keys, values, batch, window_index=window_index)
    token = 0
    for row, start, length in zip(plan.rows, plan.num_computed_tokens, plan.num_new_tokens, strict=True):
        for position in range(start, start + length):
            assert batch.positions[token] == position
            past = torch.arange(position + 1)
            slots = tables.block_table[int(row), past // BLOCK] * BLOCK + past % BLOCK
            assert batch.slot_mapping[token] == slots[-1]
            expected = naive(query[token], keys, values, slots[-(WINDOWS[window_index] or len(slots)) :])
            assert (out[token].double() - expected).abs().max() < 1e-5
            token += 1
