"""Executes StepPlans on the device: inputs, forward pass and logits in one launch, sampling in another.

Called by the engine loop, which owns the order of steps. Owns all device tensors; decides nothing.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from services.generator.adapters.packed import PackedAdapter
from services.generator.core.plan import AdapterCopy, IntArray, StepPlan, StepResult
from services.generator.core.specs import KVCacheSpec, SchedulerLimits
from services.generator.layers.attention import attend
from services.generator.layers.forward_batch import ForwardBatch
from services.generator.runner.adapter_bank import AdapterBank
from services.generator.runner.kv_cache_pool import KVCachePool
from services.generator.runner.row_tables import RowTables
from services.generator.runner.sampler import Logprobs, Sampler, logprobs_of
from services.generator.runner.step_inputs import make_forward_batch
from shared.modeling.config import DecoderConfig
from shared.modeling.decoder import DecoderWeights, Linear, decoder_layers, linear
from shared.modeling.rope import apply_rope, rope_table

SCORED_AT_ONCE = 256
"""Prompt tokens whose logits are in memory at one time."""


@dataclass(frozen=True, slots=True)
class LaunchedStep:
    """A step whose forward pass is on its way; `logits` [N, V] fp32, `rows` and `positions` [N] of the tokens to choose."""

    plan: StepPlan
    logits: Tensor
    rows: Tensor
    positions: Tensor
    prompt_logprobs: Logprobs | None


@dataclass(frozen=True, slots=True)
class SampledStep:
    """A step whose tokens are chosen, or will be; its tensors live on the device."""

    step_id: int
    token_ids: Tensor
    logprobs: Logprobs | None
    prompt_logprobs: Logprobs | None

    def result(self) -> StepResult:
        """Wait for the sampled ids: the one place where the host waits for the device."""
        return StepResult(
            self.step_id,
            self.token_ids.to(torch.int32).cpu().numpy(),
            None if self.logprobs is None else self.logprobs.to_host(),
            None if self.prompt_logprobs is None else self.prompt_logprobs.to_host(),
        )


class StepOps:
    """The decoder's projections and attention for one step, see `DecoderOps`."""

    def __init__(
        self, batch: ForwardBatch, pool: KVCachePool, bank: AdapterBank | None, rotary: Tensor, config: DecoderConfig
    ) -> None:
        self._batch = batch
        self._pool = pool
        self._bank = bank
        self._rotary = rotary  # [T, D]
        self._config = config

    def project(self, layer: int, group: str, projection: Linear, x: Tensor) -> Tensor:
        """Base projection of every row at once, and each row's adapter."""
        y = linear(projection, x)
        if self._bank is not None:
            self._bank.add((layer, group), y, x, self._batch.adapter_rows)
        return y

    def attend(self, layer: int, qkv: Tensor) -> Tensor:
        """Rotate, write K and V to the pool, attend over it."""
        config, batch = self._config, self._batch
        heads = qkv.view(len(qkv), -1, config.head_dim)  # [T, Hq + 2 Hkv, D]
        kind = config.layers[layer]
        rotated = heads[:, : config.num_heads + config.num_kv_heads]
        if kind.has_rope:
            rotated = apply_rope(rotated, self._rotary)
        query, key = rotated[:, : config.num_heads], rotated[:, config.num_heads :]
        self._pool.write(layer, batch.slot_mapping, key, heads[:, -config.num_kv_heads :])
        keys, values = self._pool.keys[layer], self._pool.values[layer]
        return attend(query, keys, values, batch, window_index=kind.window_index)


@dataclass(frozen=True, slots=True)
class AdapterStorage:
    """The tensors of adapters: all known versions in host memory, and the device's bank."""

    bank: AdapterBank
    versions: dict[int, PackedAdapter]

    def apply(self, copies: Iterable[AdapterCopy]) -> None:
        """Make slots hold what a plan expects of them."""
        for copy in copies:
            self.bank.install(copy.slot, self.versions[copy.version_id])


class ModelRunner:
    """One model on one device."""

    def __init__(
        self,
        config: DecoderConfig,
        weights: DecoderWeights,
        pool: KVCachePool,
        spec: KVCacheSpec,
        limits: SchedulerLimits,
        adapters: AdapterStorage | None = None,
    ) -> None:
        device, dtype = weights.embedding.device, weights.embedding.dtype
        self._config = config
        self._weights = weights
        self._pool = pool
        self._adapters = adapters
        self._block_size = spec.block_size
        self._tables = RowTables(limits.max_num_seqs, spec.blocks_for(limits.max_model_len), device)
        self._sampler = Sampler(limits.max_num_seqs, config.vocab_size, device)
        self._rope = rope_table(config.rope, limits.max_model_len, dtype, device)

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> LaunchedStep:
        """Launch a step up to its logits."""
        batch = self.prepare(plan)
        hidden = self.forward(batch)
        logits = self.logits(hidden[batch.logits_index], batch.adapter_slots[batch.logits_index])
        rows = torch.from_numpy(plan.rows[plan.sampled]).to(logits.device, torch.int64)
        positions = batch.positions[batch.logits_index] + 1
        return LaunchedStep(plan, logits, rows, positions, self._score_prompt(plan, hidden, batch.adapter_slots))

    @torch.inference_mode()
    def sample(self, step: LaunchedStep, masks: IntArray | None) -> SampledStep:
        """Choose a launched step's tokens; they are also kept on the device for the next one.

        Args:
            masks: [N, ceil(V / 32)] bit masks of the ids that each row may choose, or None where no row is restricted so.
        """
        features = step.plan.features
        on_device = None if masks is None else torch.from_numpy(masks).to(step.logits.device, non_blocking=True)
        token_ids = self._sampler(step.logits, features, step.rows, step.positions, on_device)
        self._tables.last_token[step.rows] = token_ids
        num_top = features.num_logprobs
        logprobs = None if num_top is None else logprobs_of(step.logits, token_ids, num_top)
        return SampledStep(step.plan.step_id, token_ids, logprobs, step.prompt_logprobs)

    def check_device(self) -> None:
        """Raise where the device takes no work any more: after most errors of a GPU every further call fails too."""
        torch.zeros(1, device=self._weights.embedding.device).item()

    def prepare(self, plan: StepPlan) -> ForwardBatch:
        """Enter what the plan changes in the tables, and make its inputs."""
        self._tables.apply(plan.block_updates)
        self._sampler.begin_rows(plan.new_rows)
        if self._adapters is not None:
            self._adapters.apply(plan.adapter_copies)
        dtype = self._weights.embedding.dtype
        return make_forward_batch(plan, self._tables, self._block_size, dtype=dtype, windows=self._config.windows)

    def forward(self, batch: ForwardBatch) -> Tensor:
        """Hidden states [T, C] after the last norm."""
        hidden = functional.embedding(batch.token_ids, self._weights.embedding)  # [T, C]
        if self._bank is not None:
            self._bank.add_to_embedding(hidden, batch.token_ids, batch.adapter_slots, batch.adapter_rows)
        ops = StepOps(batch, self._pool, self._bank, self._rope[batch.positions], self._config)
        return decoder_layers(self._weights, self._config, ops, hidden)

    def logits(self, hidden: Tensor, adapter_slots: Tensor) -> Tensor:
        """[N, C], and the slot of each row's adapter [N], to [N, V] in fp32."""
        logits = linear(Linear(self._weights.head), hidden)
        if self._bank is not None:
            self._bank.add_to_logits(logits, hidden, adapter_slots)
        return logits.float()

    @property
    def _bank(self) -> AdapterBank | None:
        return None if self._adapters is None else self._adapters.bank

    def _score_prompt(self, plan: StepPlan, hidden: Tensor, adapter_slots: Tensor) -> Logprobs | None:
        """Log-probabilities of prompt tokens, in pieces that bound the memory for their logits."""
        if len(plan.scored) == 0:
            return None
        where, ids = (
            torch.from_numpy(array).to(hidden.device, torch.int64) for array in (plan.scored, plan.scored_ids)
        )
        parts = [
            logprobs_of(self.logits(hidden[piece], adapter_slots[piece]), piece_ids, plan.num_prompt_logprobs)
            for piece, piece_ids in zip(
                torch.split(where, SCORED_AT_ONCE), torch.split(ids, SCORED_AT_ONCE), strict=True
            )
        ]
        return Logprobs(*(torch.cat([getattr(part, name) for part in parts]) for name in ("chosen", "top_ids", "top")))
