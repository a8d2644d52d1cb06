"""Turns the sampling fields of a request into the engine's parameters, one per choice.

Called by the API routes. The only place where defaults and special values of the public fields get their meaning.
"""

import secrets

from services.generator.core.request import SamplingParams
from shared.contracts.generation import GenerationFields

GREEDY_BELOW = 1e-5
"""Temperatures below this are taken as 0: dividing by them would overflow and the likeliest token wins anyway."""
_INT64 = 2**63


def choice_params(fields: GenerationFields, max_tokens: int, stop_token_ids: frozenset[int]) -> list[SamplingParams]:
    """Parameters of the `n` choices of one prompt; choice i draws with seed + i."""
    temperature = 1.0 if fields.temperature is None else fields.temperature
    seed = secrets.randbits(62) if fields.seed is None else fields.seed
    return [
        SamplingParams(
            max_tokens=max_tokens,
            temperature=0.0 if temperature < GREEDY_BELOW else temperature,
            top_p=1.0 if fields.top_p is None else fields.top_p,
            top_k=max(0, fields.top_k or 0),
            seed=(seed + index + _INT64) % (2 * _INT64) - _INT64,  # wraps around like int64
            stop_token_ids=stop_token_ids,
        )
        for index in range(fields.n or 1)
    ]


def stop_strings(fields: GenerationFields) -> list[str]:
    """The request's stop strings as a list."""
    if fields.stop is None:
        return []
    return [fields.stop] if isinstance(fields.stop, str) else list(fields.stop)
