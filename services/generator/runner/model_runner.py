"""Executes StepPlans on the device: inputs, forward pass, logits, sampling.

Called by the engine loop, which owns the order of steps. Owns all device tensors; decides nothing.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from services.generator.core.plan import StepPlan, StepResult
from services.generator.core.specs import KVCacheSpec, SchedulerLimits
from services.generator.layers.attention import attend
from services.generator.layers.forward_batch import ForwardBatch
from services.generator.runner.kv_cache_pool import KVCachePool
from services.generator.runner.row_tables import RowTables
from services.generator.runner.sampler import greedy, sample
from services.generator.runner.step_inputs import make_forward_batch
from shared.modeling.config import DecoderConfig
from shared.modeling.decoder import DecoderWeights, Linear, decoder_forward, linear
from shared.modeling.rope import apply_rope, rope_table


@dataclass(frozen=True, slots=True)
class LaunchedStep:
    """A step on its way; `token_ids` [N] live on the device."""

    step_id: int
    token_ids: Tensor

    def result(self) -> StepResult:
        """Wait for the sampled ids: the one place where the host waits for the device."""
        return StepResult(self.step_id, self.token_ids.to(torch.int32).cpu().numpy())


class StepOps:
    """The decoder's projections and attention for one step, see `DecoderOps`."""

    def __init__(self, batch: ForwardBatch, pool: KVCachePool, rotary: Tensor, config: DecoderConfig) -> None:
        self._batch = batch
        self._pool = pool
        self._rotary = rotary  # [T, D]
        self._config = config

    def project(self, layer: int, group: str, projection: Linear, x: Tensor) -> Tensor:
        """Base projection of every row."""
        return linear(projection, x)

    def attend(self, layer: int, qkv: Tensor) -> Tensor:
        """Rotate, write K and V to the pool, attend over it."""
        config, batch = self._config, self._batch
        heads = qkv.view(len(qkv), -1, config.head_dim)  # [T, Hq + 2 Hkv, D]
        rotated = apply_rope(heads[:, : config.num_heads + config.num_kv_heads], self._rotary)
        query, key = rotated[:, : config.num_heads], rotated[:, config.num_heads :]
        self._pool.write(layer, batch.slot_mapping, key, heads[:, -config.num_kv_heads :])
        return attend(query, self._pool.keys[layer], self._pool.values[layer], batch)


class ModelRunner:
    """One model on one device."""

    def __init__(
        self,
        config: DecoderConfig,
        weights: DecoderWeights,
        pool: KVCachePool,
        spec: KVCacheSpec,
        limits: SchedulerLimits,
    ) -> None:
        device, dtype = weights.embedding.device, weights.embedding.dtype
        self._config = config
        self._weights = weights
        self._pool = pool
        self._block_size = spec.block_size
        self._tables = RowTables(limits.max_num_seqs, spec.blocks_for(limits.max_model_len), device)
        self._rope = rope_table(config.rope, limits.max_model_len, dtype, device)

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> LaunchedStep:
        """Run one step; the sampled ids are also kept on the device for the next one."""
        self._tables.apply(plan)
        dtype = self._weights.embedding.dtype
        batch = make_forward_batch(plan, self._tables, self._block_size, dtype)
        logits = self.forward(batch)
        rows = torch.from_numpy(plan.rows[plan.sampled]).to(logits.device, torch.int64)
        token_ids = self._sample(plan, batch, logits, rows)
        self._tables.last_token[rows] = token_ids
        return LaunchedStep(plan.step_id, token_ids)

    def forward(self, batch: ForwardBatch) -> Tensor:
        """Logits [N, V] in fp32 of the positions that sample."""
        ops = StepOps(batch, self._pool, self._rope[batch.positions], self._config)
        hidden = decoder_forward(self._weights, self._config, ops, batch.token_ids)
        return linear(Linear(self._weights.head), hidden[batch.logits_index]).float()

    def _sample(self, plan: StepPlan, batch: ForwardBatch, logits: Tensor, rows: Tensor) -> Tensor:
        if plan.is_greedy:
            return greedy(logits)
        tables = self._tables
        filters = (tables.top_k[rows], tables.top_p[rows]) if plan.has_filters else None
        position = batch.positions[batch.logits_index] + 1
        return sample(logits, tables.temperature[rows], filters, tables.seed[rows], position)
