"""One step as device tensors: what the layers are given instead of any global context.

Made once per step by `runner.step_inputs`, read by attention and by the sampler. Every index that a layer needs is here, so that
no layer computes one. Padding entries point at slot 0, and masks keep them out of every sum.
"""

from dataclasses import dataclass

from torch import Tensor

from services.generator.kernels.reference.lora import SlotGroup


@dataclass(frozen=True, slots=True)
class AttentionGroup:
    """Rows of like length whose queries are attended together, padded to the longest among them.

    Attributes:
        tokens: which tokens of the step belong to the group.
        query_index: [S, Q] which token of the group each padded query is; None where Q is 1 and nothing is padded.
        token_index: [T] which padded query each token of the group is; None likewise.
        kv_slots: [S * K] slot of every key, row by row.
        masks: one for each different window of the model, in order of `DecoderConfig.windows`; [S, 1, Q, K] each, added to the
            scores: 0 where the key is seen, -inf elsewhere.
    """

    tokens: slice
    query_index: Tensor | None
    token_index: Tensor | None
    kv_slots: Tensor
    masks: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """The tokens of a step: first one token of each decode row, then the chunks of the prefill rows, short ones first.

    Attributes:
        token_ids: [T] int64.
        positions: [T] int64.
        slot_mapping: [T] int64, where each token writes its key and value.
        groups: the rows in groups that attention takes one by one; all tokens in order. The decode rows are one group.
        logits_index: [N] tokens whose hidden state is turned into logits.
        adapter_slots: [T] int32, the slot of each token's adapter, NO_ADAPTER for the base model.
        adapter_rows: the tokens by adapter slot, those of the base model left out; empty where no row has an adapter.
    """

    token_ids: Tensor
    positions: Tensor
    slot_mapping: Tensor
    groups: list[AttentionGroup]
    logits_index: Tensor
    adapter_slots: Tensor
    adapter_rows: list[SlotGroup]
