"""A piece of one sequence that is computed in one step; made by the PlanBuilder, read by what turns pieces into arrays."""

from typing import NamedTuple

from services.generator.core.sequence import Sequence


class Chunk(NamedTuple):
    """Tokens `[start, start + length)` of one sequence, beyond the one that a decode row has."""

    sequence: Sequence
    row: int
    start: int
    length: int
    samples: bool

    @property
    def end(self) -> int:
        """Position after its last token."""
        return self.start + self.length
