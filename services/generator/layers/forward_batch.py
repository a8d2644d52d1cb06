"""One step as device tensors: what the layers are given instead of any global context.

Made once per step by `runner.step_inputs`, read by attention, by the products with adapters and by the ModelRunner, which picks out
the rows that sample. Every index that a layer needs is here, so that no layer computes one.
"""

from dataclasses import dataclass

from torch import Tensor

from services.generator.kernels.lora_segments import LoraSegments
from services.generator.kernels.reference.lora import SlotGroup


@dataclass(frozen=True, slots=True)
class AttentionGroup:
    """Rows of like length whose queries are attended together, padded to the longest among them.

    Padding entries point at slot 0, and masks keep them out of every sum.

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
class PagedRows:
    """The rows of a step for the kernels of paged attention: first those with one token.

    Attributes:
        num_decodes: rows with one token.
        block_table: [S, blocks] int32.
        context_lens: [S] int32, keys of each row; 0 of padding.
        cu_query_lens: [S - num_decodes + 1] int32, counted from the first token behind the decode rows.
        tiles: [2, tiles] int32, of the rows behind the decode rows.
    """

    num_decodes: int
    block_table: Tensor
    context_lens: Tensor
    cu_query_lens: Tensor
    tiles: Tensor


@dataclass(frozen=True, slots=True)
class AdapterRows:
    """The rows of a product by adapter; some row has one.

    Attributes:
        segments: for the LoRA kernels.
        chunk_size: rows of a chunk of `segments`.
        num_joined: the product of a projection's base takes along the rank-r side of the first so many slots, which are all that
            occur; 0 where a kernel of its own computes that side.
        slot_groups: for the reference of LoRA, those of the base model left out; empty for the kernels.
    """

    segments: LoraSegments[Tensor]
    chunk_size: int
    num_joined: int
    slot_groups: list[SlotGroup]


@dataclass(frozen=True, slots=True)
class ImageRows:
    """What stands in place of placeholders' embeddings.

    Attributes:
        tokens: [I] int64, tokens of the step.
        rows: [I, C] in the decoder's dtype.
    """

    tokens: Tensor
    rows: Tensor


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """The tokens of a step: first one token of each decode row, then the chunks of the prefill rows, short ones first.

    Attributes:
        token_ids: [T] int64.
        positions: [T] int32, of the tokens in their sequences.
        rope_positions: [3, T] int32, what each section of a head turns by; None where all of it turns by `positions`.
        slot_mapping: [T] int64, where each token writes its key and value; -1 of padding, which writes nothing.
        logits_index: [N] int32, tokens whose hidden state is turned into logits; None for all of them in order.
        paged: the rows for the attention kernels.
        adapters: the tokens by adapter; None where no row has one.
        groups: the rows for the reference of attention, in groups that it takes one by one; all tokens in order.
        images: None where no token belongs to one.
    """

    token_ids: Tensor
    positions: Tensor
    rope_positions: Tensor | None
    slot_mapping: Tensor
    logits_index: Tensor | None
    paged: PagedRows
    adapters: AdapterRows | None
    groups: list[AttentionGroup]
    images: ImageRows | None = None
