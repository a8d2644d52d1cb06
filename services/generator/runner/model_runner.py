"""Executes StepPlans on the device: inputs, forward pass and logits in one launch, sampling in another.

Called by the engine loop, which owns the order of steps. Owns all device tensors; decides nothing.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise, product

import numpy as np
import torch
from torch import Tensor

from services.generator.adapters.modules import HEAD_KEY
from services.generator.core.launch import Launch
from services.generator.core.plan import IntArray, StepPlan, StepResult, features_of
from services.generator.core.request import SamplingParams
from services.generator.core.specs import KVCacheSpec, SchedulerLimits
from services.generator.layers.backends import Backends, make_attention, make_kernels
from services.generator.layers.forward_batch import AdapterRows, ForwardBatch
from services.generator.runner.adapter_storage import AdapterStorage
from services.generator.runner.encoder_cache import EncoderCache
from services.generator.runner.graph_shapes import GraphShapes, graph_sizes
from services.generator.runner.kv_cache_pool import KVCachePool
from services.generator.runner.lora_shape import LoraShape, LoraShapes
from services.generator.runner.reference_inputs import adapter_groups, attention_groups
from services.generator.runner.row_tables import RowTables
from services.generator.runner.sampler import Logprobs, LogprobsCopy, Sampler, logprobs_of
from services.generator.runner.step_graphs import StepGraphs, StepOutputs
from services.generator.runner.step_inputs import make_forward_batch
from services.generator.runner.step_layout import StepLayout, StepShape, decode_shape
from services.generator.runner.step_ops import StepOps
from shared.modeling.config import DecoderConfig
from shared.modeling.decoder import DecoderWeights, Linear, decoder_forward
from shared.modeling.rope import rope_table, sectioned_rows
from shared.modeling.transfers import HostCopy, to_device

WARM_UP_SIZES = (4, 16, 32, 64, 128, 512, 2048)
"""Numbers of tokens between which kernels are launched in other ways."""

SCORED_AT_ONCE = 256
"""Prompt tokens whose logits are in memory at one time."""


@dataclass(frozen=True, slots=True)
class LaunchedStep:
    """A step whose forward pass is on its way."""

    plan: StepPlan
    outputs: StepOutputs
    prompt_logprobs: Logprobs | None


class SampledStep:
    """A step whose tokens are chosen, or will be; they are on their way to the host."""

    def __init__(
        self, step_id: int, token_ids: Tensor, logprobs: Logprobs | None, prompt_logprobs: Logprobs | None
    ) -> None:
        self._step_id = step_id
        self._token_ids = HostCopy(token_ids.to(torch.int32))
        self._logprobs = None if logprobs is None else LogprobsCopy(logprobs)
        self._prompt_logprobs = None if prompt_logprobs is None else LogprobsCopy(prompt_logprobs)

    def result(self) -> StepResult:
        """Wait for the sampled ids: the one place where the host waits for the device."""
        return StepResult(
            self._step_id,
            self._token_ids.wait(),
            None if self._logprobs is None else self._logprobs.wait(),
            None if self._prompt_logprobs is None else self._prompt_logprobs.wait(),
        )


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """Weights on their device, and the code that computes with them."""

    config: DecoderConfig
    weights: DecoderWeights
    backends: Backends


class ModelRunner:
    """One model on one device.

    Attributes:
        graph_shapes: what `capture_graphs` may capture.
        launches: steps so far, by how they were launched.
    """

    def __init__(
        self,
        model: LoadedModel,
        pool: KVCachePool,
        spec: KVCacheSpec,
        limits: SchedulerLimits,
        adapters: AdapterStorage | None = None,
        encoder_cache: EncoderCache | None = None,
    ) -> None:
        config, weights, backends = model.config, model.weights, model.backends
        device, dtype = weights.embedding.device, weights.embedding.dtype
        self._config = config
        self._weights = weights
        self._adapters = adapters
        self._encoder_cache = encoder_cache
        self._bank = None if adapters is None else adapters.bank
        self._lora = None if self._bank is None else LoraShapes(self._bank.num_slots, self._bank.max_rank)
        self._adapted_head = None if self._bank is None else self._bank.group(HEAD_KEY)
        self._device = device
        self._limits = limits
        self._block_size = spec.block_size
        self._backends = backends
        self._tables = RowTables(limits.max_num_seqs, spec.blocks_for(limits.max_model_len), device)
        self._rope = rope_table(config.rope, limits.max_model_len, dtype, device)
        self._kernels = make_kernels(backends)
        self._sampler = Sampler(limits.max_num_seqs, config.vocab_size, device, self._kernels)
        self._attention = make_attention(
            backends,
            config,
            (pool.keys, pool.values),
            block_size=spec.block_size,
            max_tokens=limits.max_num_batched_tokens,
            max_rows=limits.max_num_seqs,
        )
        self.graph_shapes = GraphShapes(limits, self._lora)
        self._graphs: StepGraphs | None = None
        self.launches: Counter[Launch] = Counter()

    @property
    def num_graphs(self) -> int:
        """Graphs that were captured."""
        return 0 if self._graphs is None else self._graphs.num_graphs

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Run steps of nothing but padding, so that all kernels are compiled before the first request comes."""
        most = self._limits.max_num_batched_tokens
        sizes = [*(size for size in WARM_UP_SIZES if size < most), most]
        for before, num_tokens in pairwise([0, *sizes]):
            for lora in [None, *(self._lora.ways_between(before + 1, num_tokens) if self._lora else [])]:
                self._run_padding(StepShape(num_tokens, 1, 2, 1, lora))
        # Attention of decode rows is launched by their number: between two sizes as at one of the ends.
        for before, num_rows in pairwise([0, *graph_sizes(self._limits).decodes]):
            for end in sorted({before + 1, num_rows}):
                self._run_padding(decode_shape(end, None))
        self._warm_up_choices()

    @torch.inference_mode()
    def capture_graphs(self, shapes: Iterable[StepShape]) -> None:
        """Capture steps of few tokens, so that they take one launch each; all that is in the cache may be overwritten.

        Args:
            shapes: of `graph_shapes`, of which all must be captured before a step is executed.
        """
        if self._graphs is None:
            vocab_size, dtype = self._config.vocab_size, self._weights.head.dtype
            self._graphs = StepGraphs(self._layout, self.graph_shapes, vocab_size, dtype, self._device)
        self._graphs.capture(self.compute, shapes)

    @torch.inference_mode()
    def run_largest_step(self) -> None:
        """Run as many tokens and rows as there may be, sampled with everything there is; for measuring memory."""
        num_tokens = self._limits.max_num_batched_tokens
        num_rows = min(self._limits.max_num_seqs, num_tokens)
        outputs = self._run_padding(
            StepShape(num_tokens, 0, num_rows, num_rows, LoraShape(1, 0) if self._lora else None)
        )
        self._sample_padding(
            outputs, SamplingParams(max_tokens=1, temperature=1.0, top_p=0.5, presence_penalty=1.0, logprobs=1)
        )

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> LaunchedStep:
        """Launch a step up to its logits."""
        self._tables.apply(plan.block_updates)
        self._sampler.begin_rows(plan.new_rows)
        if self._adapters is not None:
            self._adapters.begin_step(plan)
        if self._encoder_cache is not None and plan.images is not None:
            self._encoder_cache.encode(plan.images.encodes)
        outputs = None if self._graphs is None else self._graphs.replay(plan)
        self.launches[Launch.REPLAY if outputs is not None else _why_not_replayed(plan)] += 1
        if outputs is None:
            layout = self._layout_of(plan)
            outputs = self.compute(to_device(layout.pack(plan), self._device), layout, plan)
        launched = LaunchedStep(plan, outputs, self._score_prompt(plan, outputs.hidden))
        if self._adapters is not None:
            self._adapters.end_step(plan)
        return launched

    @torch.inference_mode()
    def sample(self, step: LaunchedStep, masks: IntArray | None) -> SampledStep:
        """Choose a launched step's tokens; they are also kept on the device for the next one.

        Args:
            masks: [N, ceil(V / 32)] bit masks of the ids that each row may choose, or None where no row is restricted so.
        """
        plan, features, logits = step.plan, step.plan.features, step.outputs.logits
        rows, positions = step.outputs.rows.long(), step.outputs.positions.long() + 1
        drawn = None if features.is_greedy else self._sampler.uniforms(plan.sampled_rows, plan.sampled_positions)
        uniforms, on_device = (None if array is None else to_device(array, logits.device) for array in (drawn, masks))
        token_ids = self._sampler(logits, features, rows, positions, uniforms=uniforms, masks=on_device)
        self._tables.last_token[rows] = token_ids
        num_top = features.num_logprobs
        logprobs = None if num_top is None else logprobs_of(logits, token_ids, num_top)
        return SampledStep(plan.step_id, token_ids, logprobs, step.prompt_logprobs)

    def check_device(self) -> None:
        """Raise where the device takes no work any more: after most errors of a GPU every further call fails too."""
        torch.zeros(1, device=self._device).item()

    def compute(
        self, packed: Tensor, layout: StepLayout, plan: StepPlan | None = None, *, logits: Tensor | None = None
    ) -> StepOutputs:
        """Launch the forward pass; `plan` is asked for images, and by reference backends. See `logits` for the buffer."""
        batch = make_forward_batch(packed, layout, self._tables, self._kernels, self._block_size)
        if plan is not None:
            batch = self._add_reference_inputs(self._add_images(batch, plan), plan)
        hidden, where, adapters = self.forward(batch), batch.logits_index, batch.adapters
        token_rows, positions = layout.split(packed).token_rows, batch.positions
        if where is not None:
            token_rows, positions = token_rows.index_select(0, where), positions.index_select(0, where)
            if adapters is not None:
                adapters = self._head_rows(adapters.segments.row_slots.index_select(0, where))
        sampled = hidden if where is None else hidden.index_select(0, where)
        return StepOutputs(hidden, self.logits(sampled, adapters, logits), token_rows, positions)

    def forward(self, batch: ForwardBatch) -> Tensor:
        """Hidden states [T, C] after the last norm."""
        ops = StepOps(batch, self._attention, self._kernels, self._bank, self._rotary_rows(batch))
        return decoder_forward(self._weights, self._config, ops, batch.token_ids)

    def logits(self, hidden: Tensor, adapters: AdapterRows | None = None, out: Tensor | None = None) -> Tensor:
        """[N, C], and these rows by adapter, None where none has one, to [N, V] in the model's dtype: `out`, where given."""
        if out is not None and (self._adapted_head is None or adapters is None):
            return torch.mm(hidden, self._weights.head.t(), out=out)
        logits = self._kernels.project(Linear(self._weights.head), hidden, self._adapted_head, adapters)
        return logits if out is None else out.copy_(logits)

    def _layout_of(self, plan: StepPlan) -> StepLayout:
        """The layout that holds a plan exactly."""
        lora = None if self._lora is None else self._lora.of_plan(plan, plan.num_tokens)
        shape = StepShape(plan.num_tokens, plan.num_decodes, len(plan.rows), len(plan.sampled), lora)
        return self._layout(shape)

    def _layout(self, shape: StepShape) -> StepLayout:
        num_slots, max_rank = (self._bank.num_slots, self._bank.max_rank) if self._bank else (0, 0)
        has_axes = self._config.rope.sections is not None
        return StepLayout(shape, num_slots, max_rank, self._tables.spare_row, has_axes)

    def _run_padding(self, shape: StepShape) -> StepOutputs:
        layout = self._layout(shape)
        return self.compute(to_device(layout.pack_padding(), self._device), layout)

    def _rotary_rows(self, batch: ForwardBatch) -> Tensor:
        sections = self._config.rope.sections
        if sections is None or batch.rope_positions is None:
            return self._rope.index_select(0, batch.positions)
        return sectioned_rows(self._rope, batch.rope_positions, sections)

    def _warm_up_choices(self) -> None:
        """They are launched by what rows ask for, and by the dtype of logits: fp32 where something changes them."""
        outputs = self._run_padding(decode_shape(1, None))
        for temperature, top_p, bias in product((0.0, 1.0), (1.0, 0.5), ({}, {0: 1.0})):
            params = SamplingParams(max_tokens=1, temperature=temperature, top_p=top_p, logit_bias=bias)
            self._sample_padding(outputs, params)

    def _sample_padding(self, outputs: StepOutputs, params: SamplingParams) -> None:
        features, rows = features_of(params), torch.zeros_like(outputs.rows).long()
        uniforms = None if features.is_greedy else rows.double()
        self._sampler(outputs.logits, features, rows, outputs.positions, uniforms=uniforms)

    def _add_images(self, batch: ForwardBatch, plan: StepPlan) -> ForwardBatch:
        if self._encoder_cache is None or plan.images is None:
            return batch
        return replace(batch, images=self._encoder_cache.read(plan.images))

    def _add_reference_inputs(self, batch: ForwardBatch, plan: StepPlan) -> ForwardBatch:
        table, dtype = self._tables.block_table, self._weights.embedding.dtype
        if self._backends.attention == "reference":
            groups = attention_groups(plan, table, self._block_size, dtype=dtype, windows=self._config.windows)
            batch = replace(batch, groups=groups)
        if self._backends.kernels == "reference":
            groups_by_slot = adapter_groups(plan, table.device)
            batch = replace(batch, adapters=batch.adapters and replace(batch.adapters, slot_groups=groups_by_slot))
        return batch

    def _head_rows(self, row_slots: Tensor) -> AdapterRows | None:
        """For `logits`, from the adapter slot of each row [N] int32."""
        return None if self._adapted_head is None else self._kernels.rows_by_adapter(row_slots)

    def _score_prompt(self, plan: StepPlan, hidden: Tensor) -> Logprobs | None:
        """Log-probabilities of prompt tokens, in pieces that bound the memory for their logits."""
        if len(plan.scored) == 0:
            return None
        where, ids = (to_device(array, hidden.device).long() for array in (plan.scored, plan.scored_ids))
        slots = to_device(np.repeat(plan.adapter_slots, plan.num_new_tokens)[plan.scored], hidden.device)
        pieces = zip(*(torch.split(each, SCORED_AT_ONCE) for each in (where, ids, slots)), strict=True)
        parts = [
            logprobs_of(self.logits(hidden[piece], self._head_rows(piece_slots)), piece_ids, plan.num_prompt_logprobs)
            for piece, piece_ids, piece_slots in pieces
        ]
        return Logprobs(*(torch.cat([getattr(part, name) for part in parts]) for name in ("chosen", "top_ids", "top")))


def _why_not_replayed(plan: StepPlan) -> Launch:
    if plan.is_decode:
        return Launch.NO_GRAPH
    return Launch.PROMPT if plan.images is None else Launch.IMAGE
