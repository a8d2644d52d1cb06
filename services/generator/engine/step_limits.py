"""Limits of steps and sequences, from settings, model and device.

Called by `engine.build` and `engine.runner_start`. Reads no weights and measures nothing.
"""

import torch

from services.generator.core.specs import KVCacheSpec, SchedulerLimits
from services.generator.settings import GeneratorSettings
from shared.modeling.config import DecoderConfig
from shared.settings.errors import StartError

MAX_STEP_TOKENS = {"cpu": 512, "cuda": 8192}
"""--max-num-batched-tokens unless given."""

MAX_ROWS = {"cpu": 32, "cuda": 256}
"""--max-num-seqs unless given."""


def step_limits(settings: GeneratorSettings, config: DecoderConfig, device: torch.device) -> SchedulerLimits:
    """What the settings say, or what the device allows.

    Raises:
        StartError: the model takes no sequences of --max-model-len.
    """
    max_model_len = settings.max_model_len or config.context_len
    if max_model_len > config.context_len:
        raise StartError(f"--max-model-len {max_model_len} is longer than the model's context of {config.context_len}")
    exact_len = config.rope.scaling.exact_len
    if exact_len is not None and max_model_len > exact_len:
        raise StartError(
            f"rope scaling {config.rope.kind} is supported up to its original length only, since beyond it the keys of a "
            f"sequence depend on how long it becomes; start with --max-model-len {min(exact_len, config.context_len)}"
        )
    num_rows = settings.max_num_seqs or MAX_ROWS[device.type]
    num_tokens = settings.max_num_batched_tokens or MAX_STEP_TOKENS[device.type]
    return SchedulerLimits(num_rows, num_tokens, max_model_len, config.vocab_size)


def check_longest_fits(spec: KVCacheSpec, limits: SchedulerLimits) -> None:
    """Raise StartError where one sequence of --max-model-len has no room in the cache."""
    needed = spec.blocks_for(limits.max_model_len)
    if needed > spec.num_blocks:
        raise StartError(
            f"one sequence of --max-model-len {limits.max_model_len} needs {needed} KV blocks, but there is memory for "
            f"{spec.num_blocks}; raise --kv-cache-memory-bytes, on a GPU --gpu-memory-utilization, or lower --max-model-len"
        )
