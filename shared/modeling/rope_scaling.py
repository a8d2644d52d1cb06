"""Laws that stretch rotary embeddings to longer contexts: each gives the inverse frequencies and a factor on attention.

Read from config.json by `rope_config`, used by `rope`. Every law is one frozen class; the table of names is at the end.
Formulas keep the order of operations of transformers' `ROPE_INIT_FUNCTIONS`, so that the tables come out bit for bit the same.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from shared.modeling.config_reader import ConfigReader
from shared.settings.errors import ModelFolderError


@dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """A law of scaling; this one leaves RoFormer's frequencies (arXiv:2104.09864, §3.4.2) as they are.

    Attributes:
        attention_factor: factor on cosines and sines, so its square is on the scores.
        context_len: tokens that the scaled embedding was made for, where the law itself says so.
        exact_len: longest sequence whose keys do not depend on how long it will become; None is any.
    """

    attention_factor: float = 1.0
    context_len: int | None = None
    exact_len: int | None = None

    @classmethod
    def read(cls, parameters: ConfigReader, max_positions: int) -> Self:
        """From the model's rope parameters.

        Args:
            max_positions: its `max_position_embeddings`.
        Raises:
            ModelFolderError: a parameter is missing or no number.
        """
        return cls()

    def inverse_frequencies(self, powers: Tensor, theta: float) -> Tensor:
        """Angle per position of each pair of dimensions.

        Args:
            powers: [D/2] fp32, theta^(2i/D): the inverses of the unscaled frequencies.
        Returns:
            [D/2] fp32.
        """
        return 1.0 / powers


@dataclass(frozen=True, kw_only=True)
class Linear(RopeScaling):
    """Extending Context Window of Large Language Models via Positional Interpolation, arXiv:2306.15595: positions / factor."""

    factor: float

    @classmethod
    def read(cls, parameters: ConfigReader, max_positions: int) -> Self:
        return cls(factor=parameters.number("factor"))

    def inverse_frequencies(self, powers: Tensor, theta: float) -> Tensor:
        return 1.0 / powers / self.factor


@dataclass(frozen=True, kw_only=True)
class Dynamic(RopeScaling):
    """NTK-aware scaling by the current length (YaRN, arXiv:2309.00071, §3.3): unscaled up to the original length.

    Beyond it every longer sequence has other frequencies, and keys that are cached already would be wrong.
    """

    @classmethod
    def read(cls, parameters: ConfigReader, max_positions: int) -> Self:
        parameters.number("factor")  # without effect up to the original length
        return cls(exact_len=_original_len(parameters, max_positions))


@dataclass(frozen=True, kw_only=True)
class Llama3(RopeScaling):
    """The Llama 3 Herd of Models, arXiv:2407.21783, §3.4.2, with the constants of the release of Llama 3.1.

    Semantics: waves longer than original / low are slowed by `factor`, those shorter than original / high are kept, and between
    the two the frequency is interpolated linearly in original / wavelength.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_len: int

    @classmethod
    def read(cls, parameters: ConfigReader, max_positions: int) -> Self:
        low, high = parameters.number("low_freq_factor"), parameters.number("high_freq_factor")
        if low >= high:
            raise ModelFolderError(f"rope scaling llama3: high_freq_factor {high} is not above low_freq_factor {low}")
        return cls(
            factor=parameters.number("factor"),
            low_freq_factor=low,
            high_freq_factor=high,
            original_len=_original_len(parameters, max_positions),
        )

    def inverse_frequencies(self, powers: Tensor, theta: float) -> Tensor:
        plain = 1.0 / powers
        wavelengths = 2 * math.pi / plain
        is_long = wavelengths > self.original_len / self.low_freq_factor
        is_short = wavelengths < self.original_len / self.high_freq_factor
        smooth = (self.original_len / wavelengths - self.low_freq_factor) / (
            self.high_freq_factor - self.low_freq_factor
        )
        between = (1 - smooth) * plain / self.factor + smooth * plain
        return torch.where(is_long, plain / self.factor, torch.where(is_short, plain, between))


@dataclass(frozen=True, kw_only=True)
class Yarn(RopeScaling):
    """YaRN: Efficient Context Window Extension of Large Language Models, arXiv:2309.00071, §3.2 to §3.4.

    Semantics: dimensions that turn more than `beta_fast` times over the original length are kept, those that turn less than
    `beta_slow` times are slowed by `factor`, with a linear ramp over the dimensions between.
    """

    factor: float
    original_len: int
    beta_fast: float
    beta_slow: float
    has_whole_bounds: bool

    @classmethod
    def read(cls, parameters: ConfigReader, max_positions: int) -> Self:
        original_len = _original_len(parameters, max_positions)
        factor = parameters.optional_number("factor") or max_positions / original_len
        mscale, mscale_all_dim = parameters.optional_number("mscale"), parameters.optional_number("mscale_all_dim")
        attention_factor = parameters.optional_number("attention_factor")
        if attention_factor is None and mscale and mscale_all_dim:
            attention_factor = _yarn_attention(factor, mscale) / _yarn_attention(factor, mscale_all_dim)
        return cls(
            factor=factor,
            original_len=original_len,
            context_len=int(original_len * factor),
            attention_factor=_yarn_attention(factor, 1.0) if attention_factor is None else attention_factor,
            beta_fast=parameters.optional_number("beta_fast") or 32.0,
            beta_slow=parameters.optional_number("beta_slow") or 1.0,
            has_whole_bounds=parameters.boolean("truncate", default=True),
        )

    def inverse_frequencies(self, powers: Tensor, theta: float) -> Tensor:
        low, high = self._ramp_bounds(2 * len(powers), theta)
        ramp = torch.clamp((torch.arange(len(powers), dtype=torch.float32) - low) / (high - low), 0, 1)
        kept = 1 - ramp.to(powers.device)
        return 1.0 / (self.factor * powers) * (1 - kept) + 1.0 / powers * kept

    def _ramp_bounds(self, rotary_dim: int, theta: float) -> tuple[float, float]:
        def dimension(num_turns: float) -> float:
            return rotary_dim * math.log(self.original_len / (num_turns * 2 * math.pi)) / (2 * math.log(theta))

        low, high = dimension(self.beta_fast), dimension(self.beta_slow)
        if self.has_whole_bounds:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, rotary_dim - 1)
        return low, high + 0.001 if low == high else high  # never a ramp of no width


def _yarn_attention(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


@dataclass(frozen=True, kw_only=True)
class LongRope(RopeScaling):
    """LongRoPE: Extending LLM Context Window Beyond 2 Million Tokens, arXiv:2402.13753: a searched factor per dimension.

    Up to the original length the short factors hold. A longer sequence needs the long ones in all its keys, the cached ones too.
    """

    short_factors: tuple[float, ...]

    @classmethod
    def read(cls, parameters: ConfigReader, max_positions: int) -> Self:
        original_len = _original_len(parameters, max_positions)
        factor = parameters.optional_number("factor") or max_positions / original_len
        parameters.numbers("long_factor")  # without effect up to the original length
        attention_factor = parameters.optional_number("attention_factor")
        if attention_factor is None:
            growth = 0.0 if factor <= 1 else math.log(factor) / math.log(original_len)
            attention_factor = math.sqrt(1 + growth)
        return cls(
            short_factors=parameters.numbers("short_factor"),
            attention_factor=attention_factor,
            exact_len=original_len,
        )

    def inverse_frequencies(self, powers: Tensor, theta: float) -> Tensor:
        return 1.0 / (torch.tensor(self.short_factors, dtype=torch.float32, device=powers.device) * powers)


def _original_len(parameters: ConfigReader, max_positions: int) -> int:
    return parameters.optional_int("original_max_position_embeddings") or max_positions


SCALINGS: Mapping[str, type[RopeScaling]] = {
    "default": RopeScaling,
    "linear": Linear,
    "dynamic": Dynamic,
    "llama3": Llama3,
    "yarn": Yarn,
    "longrope": LongRope,
}
"""`rope_type` → law."""
