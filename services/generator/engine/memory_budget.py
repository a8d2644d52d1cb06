"""What the engine's memory goes to, by purpose, for the line that the start prints.

Called by `engine.build`. Decides nothing: how much KV fits on a GPU, `device_memory` measures. Weights and KV are what was made;
activations are an estimate for the reference backends, exact only as to their order.
"""

from dataclasses import asdict, dataclass

from services.generator.core.specs import SchedulerLimits
from shared.modeling.config import DecoderConfig

GIB = 2**30


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """Bytes by purpose.

    Attributes:
        bank: for adapters.
        encoder: of a vision tower, with the cache of its rows.
        graphs: as measured; 0 where nothing was.
        activations: for one full step.
    """

    weights: int
    kv_cache: int
    bank: int
    encoder: int
    graphs: int
    activations: int

    def in_gib(self) -> dict[str, float]:
        """Each purpose and the total in GiB, as fields of a log line."""
        sizes = asdict(self)
        return {f"{name}_gib": round(size / GIB, 3) for name, size in {**sizes, "total": sum(sizes.values())}.items()}


def activation_bytes(config: DecoderConfig, limits: SchedulerLimits, itemsize: int) -> int:
    """The widest point of a full step, whose tokens are one long prompt's last chunk.

    Semantics: T · (residual, normed and projected hidden states; qkv twice; attention's output; gate and up, and their
    product) + masks [T, K] + gathered keys and values of one layer [K] + logits of all rows, once in the model's dtype and
    twice in fp32.
    """
    num_tokens, num_keys = limits.max_num_batched_tokens, limits.max_model_len
    qkv = config.q_size + 2 * config.kv_size
    per_token = 3 * config.hidden_size + 2 * qkv + config.q_size + 3 * config.intermediate_size
    attention = num_keys * (num_tokens * len(config.windows) + 2 * config.kv_size)
    logits = limits.max_num_seqs * config.vocab_size
    return (num_tokens * per_token + attention + logits) * itemsize + 2 * 4 * logits
