"""What a step computes for one sequence; free of torch, so that an engine's loop can say it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scheduled:
    """One sequence of a step: a decode is one token, a chunk of a prompt several.

    Attributes
    ----------
    tokens : ids to compute, in order
    before : tokens of the sequence whose keys and values are cached already [tokens]
    blocks : cache blocks of the sequence in order, enough for ``before`` and ``tokens``
    """

    tokens: Sequence[int]
    before: int
    blocks: Sequence[int]

    @property
    def after(self) -> int:
        """Tokens cached once the step is done [tokens]."""
        return self.before + len(self.tokens)
