"""What the embedder and the reranker are told besides the settings of every model service.

Subclassed by the two services' settings. Defaults come from the model's folder or suit a small machine.
"""

from typing import Literal

from pydantic import Field

from shared.settings.base import ModelSettings


class EncoderSettings(ModelSettings):
    """How texts become vectors, and how the requests of many clients are gathered into one forward."""

    pooling: Literal["mean", "cls", "last", "max", "weightedmean", "mean_sqrt_len"] | None = Field(
        None, description="How token states become one vector; the folder's own unless given. Ask the model's card."
    )
    normalize: bool | None = Field(
        None, description="Whether vectors get unit length; the folder's own unless given, yes where it says nothing."
    )
    max_model_len: int | None = Field(
        None, ge=1, description="Longest input in tokens; the folder's own unless given. Longer ones are answered 400."
    )
    max_num_batched_tokens: int | None = Field(
        None,
        ge=1,
        description="Tokens in one forward, with padding if the model pads; 2048 on a CPU and 32768 on a GPU unless given. "
        "More helps a large GPU, less keeps a CPU's caches warm.",
    )
    max_num_seqs: int = Field(1024, ge=1, description="Inputs in one forward, whatever their length.")
    max_padding_share: float = Field(
        0.3,
        ge=0,
        lt=1,
        description="Padding in one forward at most, as a share, if the model pads; less makes more, smaller forwards.",
    )
    max_queue_tokens: int = Field(
        2**18,
        ge=1,
        description="Tokens that may wait for a forward; past it requests are answered 429. "
        "Choose what the model does in the time clients are willing to wait.",
    )
    max_concurrent_requests: int = Field(
        512, ge=1, description="Requests inside the service at once; past it requests are answered 429."
    )
    hold_ms: float = Field(
        2.0,
        ge=0,
        le=100,
        description="Longest time in milliseconds that a request waits for others to share its forward. "
        "A request that meets an idle model never waits.",
    )
