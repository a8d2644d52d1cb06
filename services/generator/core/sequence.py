"""The progress of one request: its tokens, its blocks, its row, its status.

Written by the Scheduler only; everyone else sees copies in a StepPlan.
"""

from dataclasses import dataclass, field
from enum import Enum, auto

from services.generator.core.adapter_version import AdapterVersion
from services.generator.core.block_keys import PrefixSalt
from services.generator.core.image_lease import ImageLease
from services.generator.core.plan import IntArray, SamplingFeatures, features_of
from services.generator.core.request import Request


class SequenceStatus(Enum):
    """Where a sequence is; the work left is `num_tokens - num_computed_tokens`, so there is no prefill flag."""

    WAITING = auto()
    RUNNING = auto()
    PREEMPTED = auto()
    FINISHED = auto()


@dataclass(slots=True, eq=False)
class Sequence:
    """One request being served.

        positions:  | computed: KV is in blocks | new in the next step … | pending: sampled, id still on the device |

    Attributes:
        num_prompt_tokens: tokens the client sent.
        most_tokens: tokens at which its output limit is reached.
        features: what its sampling needs.
        num_computed_tokens: positions whose KV is written, counting steps that are planned but not committed.
        num_pending: sampled tokens that are planned but not committed (0 or 1).
        block_ids: the block table, in order of positions.
        row: place in the runner's tables while running.
        last_step_id: last plan that reads or writes this sequence's blocks and row.
        adapter: the version it runs on to its end; None for the base model.
        has_lease: whether it depends on the content of `adapter`, as it does once it was admitted.
        blocked_since_ms: when it was first passed over for want of a slot, on the scheduler's clock; None where it was not.
        salt: what determines its KV besides the token ids; right from its first admission on.
        image_leases: of the images whose rows it has yet to compute; only while running.
        rope_positions: [3, num_prompt_tokens] where its prompt stands on three axes, if it has images and the model rotates so.
        rope_delta: what then has to be added to the positions of its output.
        block_keys: content keys of its leading full blocks, whether it holds them or not.
        num_published_tokens: leading positions in blocks that others can find.
        num_cached_tokens: prompt positions that were found when it was first admitted.
        num_scored_tokens: prompt positions whose successor's log-probability is reported or on its way.
    """

    request: Request
    num_prompt_tokens: int = field(init=False)
    most_tokens: int = field(init=False)
    features: SamplingFeatures = field(init=False)
    output_token_ids: list[int] = field(default_factory=list)
    status: SequenceStatus = SequenceStatus.WAITING
    num_computed_tokens: int = 0
    num_pending: int = 0
    block_ids: list[int] = field(default_factory=list)
    row: int | None = None
    last_step_id: int = -1
    adapter: AdapterVersion | None = None
    has_lease: bool = False
    blocked_since_ms: int | None = None
    salt: PrefixSalt = field(default_factory=PrefixSalt)
    image_leases: list[ImageLease] = field(default_factory=list)
    rope_positions: IntArray | None = None
    rope_delta: int = 0
    block_keys: list[bytes] = field(default_factory=list)
    num_published_tokens: int = 0
    num_cached_tokens: int | None = None
    num_scored_tokens: int = 0

    def __post_init__(self) -> None:
        self.num_prompt_tokens = len(self.request.prompt_token_ids)
        self.most_tokens = self.num_prompt_tokens + self.request.sampling.max_tokens
        self.features = features_of(self.request.sampling)

    @property
    def key(self) -> tuple[str, int]:
        """(frontend_id, request_id), which no other sequence has."""
        return self.request.frontend_id, self.request.request_id

    @property
    def num_tokens(self) -> int:
        """Tokens known or pending; the step that computes the last of them samples the next."""
        return self.num_prompt_tokens + len(self.output_token_ids) + self.num_pending

    @property
    def num_known_tokens(self) -> int:
        """Tokens whose ids the host knows."""
        return self.num_prompt_tokens + len(self.output_token_ids)

    def known_tokens(self, start: int, end: int) -> list[int]:
        """Ids of positions `[start, end)`, fewer if the last one is still pending."""
        num_prompt = self.num_prompt_tokens
        prompt = self.request.prompt_token_ids[start:end] if start < num_prompt else []
        return prompt + self.output_token_ids[max(0, start - num_prompt) : max(0, end - num_prompt)]
