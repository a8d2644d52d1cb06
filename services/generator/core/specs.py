"""Sizes that were measured or computed at start and never change: made in the runner, read by the ledgers.

Plain integers only, so that the scheduler can be built from them without torch.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KVCacheSpec:
    """Sizes of the paged KV cache.

    Attributes:
        num_blocks: blocks in the pool.
        block_size: token positions in a block.
    """

    num_blocks: int
    block_size: int

    @property
    def num_tokens(self) -> int:
        """Token positions in the pool."""
        return self.num_blocks * self.block_size

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` positions."""
        return -(-num_tokens // self.block_size)


@dataclass(frozen=True, slots=True)
class ImageLimits:
    """What a model that sees images may do with them.

    Attributes:
        token_id: the placeholder that stands in a prompt for each row of an image.
        num_cached_rows: rows that the encoder's output is kept in; the images of one request must fit in together.
        max_encoded_rows: rows to encode in one step; an image with more of them is alone in its step.
        has_axes: whether rotary positions have three axes, on which the rows of an image differ.
    """

    token_id: int
    num_cached_rows: int
    max_encoded_rows: int
    has_axes: bool = False


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """What one step may hold.

    Attributes:
        max_num_seqs: sequences running at once; also the number of state rows in the runner.
        max_num_batched_tokens: tokens in one step over all sequences.
        max_model_len: positions of one sequence, prompt and output together.
        vocab_size: tokens that the model knows.
        images: None where the model sees none.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    vocab_size: int
    images: ImageLimits | None = None


@dataclass(frozen=True, slots=True)
class AdapterBankSpec:
    """Sizes of the bank.

    Attributes:
        num_slots: adapters on the device at one time.
        max_rank: ranks that each slot has room for.
        max_tokens: rows of the largest step.
    """

    num_slots: int
    max_rank: int
    max_tokens: int
