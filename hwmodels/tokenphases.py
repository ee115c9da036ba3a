"""The part of a step that depends only on its number of tokens, as phases for the shared resources."""

from __future__ import annotations

from typing import final

import numpy as np

from .steptypes import Phase, phases_of
from .tokentimes import CELL, TokenTimes

_CELLS_AT_ONCE = 8


@final
class TokenPhases:
    """Phases of `TokenTimes`, kept as they come up; above the capture sizes on the same lines between cells' ends.

    Parameters
    ----------
    tokens : the times
    by_kernel : a phase for each kernel (those of identical layers together), not for each part
    """

    def __init__(self, tokens: TokenTimes, *, by_kernel: bool = False) -> None:
        self._tokens = tokens
        self._parts = tokens.kernels if by_kernel else tokens.parts
        self._known: dict[int, tuple[Phase, ...]] = {}

    def at(self, m: int) -> tuple[Phase, ...]:
        """Return the phases at ``m`` padded tokens; their seconds sum to ``TokenTimes.seconds``, rounding aside."""
        found = self._known.get(m)
        if found is None:
            found = self._known[m] = (
                self._exact([m])[0] if m <= self._tokens.exact_up_to else self._between(m)
            )
        return found

    def _between(self, m: int) -> tuple[Phase, ...]:
        cell = (m - 1) // CELL
        low, high = cell * CELL + 1, (cell + 1) * CELL
        if low not in self._known or high not in self._known:
            # One call for many counts costs little more than for one.
            first = cell // _CELLS_AT_ONCE * _CELLS_AT_ONCE
            ends = [
                end
                for number in range(first, first + _CELLS_AT_ONCE)
                for end in (number * CELL + 1, (number + 1) * CELL)
                if end > self._tokens.exact_up_to or number == cell
            ]
            self._known.update(zip(ends, self._exact(ends), strict=True))
        weight = (m - low) / (CELL - 1.0)
        return tuple(
            _mixed(below, above, weight)
            for below, above in zip(self._known[low], self._known[high], strict=True)
        )

    def _exact(self, counts: list[int]) -> list[tuple[Phase, ...]]:
        parts = self._parts(np.array(counts, dtype=np.float64))
        columns = [phases_of(name, time, len(counts)) for name, time in parts.items()]
        return list(zip(*columns, strict=True))


def _mixed(below: Phase, above: Phase, weight: float) -> Phase:
    """Return the phase at a share of the way from one token count to another."""
    seconds = below.seconds + (above.seconds - below.seconds) * weight
    names = {**below.demands, **above.demands}
    demands = {
        name: min(
            below.demands.get(name, 0.0)
            + (above.demands.get(name, 0.0) - below.demands.get(name, 0.0)) * weight,
            seconds,
        )
        for name in names
    }
    return Phase(below.name, seconds, demands)
