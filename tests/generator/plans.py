"""As much of a plan as the choice of a graph asks for."""

from dataclasses import dataclass

import numpy as np


@dataclass
class SizedPlan:
    """Of decode rows, one token each, unless it says otherwise."""

    adapter_slots: np.ndarray
    is_decode: bool
    num_tokens: int = 0
    images: None = None
    scored: tuple = ()
