"""Decode steps of one batch while its longest and mean sequences keep their numbers of key blocks.

Then only the summed context changes from step to step, by one key a sequence, and a step's time is
``scale (constant + (keys + offset)^q)^(1/q) + fixed``. Runs of steps are arrays; a few steps are worked out in plain
numbers, which costs a fifth, wherever both are sure to be rounded to the same nanosecond.
"""

from __future__ import annotations

from typing import Final, final

import numpy as np
from numpy.typing import NDArray

from .timing.decode_attention import DecodeTerms

NANO: Final = 1e9
FEW: Final = 20
"""Steps up to which plain numbers are quicker than arrays."""
_RAMP: Final = 4096
LONGEST_NS: Final = 1e9
APART: Final = 1e-4
"""Powers of NumPy and of the C library may differ in the last few bits (NumPy's tests allow it four units in the last
place): by less than 1e-5 ns of any step below ``LONGEST_NS``. A value nearer to a whole number is left to NumPy."""


@final
class DecodePiece:
    """Durations of decode steps as a function of the keys they read.

    Parameters
    ----------
    batch : sequences, each of which reads one key more a step
    terms : attention of one layer
    layers : how many layers have it
    alone : the step without attention [s]
    """

    __slots__ = ("_arrays", "_batch", "_numbers", "_offset")

    def __init__(self, batch: int, terms: DecodeTerms, layers: int, alone: float) -> None:
        fixed = (alone + layers * (terms.t0 + terms.extra)) * NANO + 0.5
        scale = layers * terms.slope * NANO
        self._batch = batch
        self._offset = float(terms.offset)
        self._numbers = tuple(map(float, (terms.q, terms.constant, 1.0 / terms.q, scale, fixed)))
        self._arrays: list[NDArray[np.float64]] = []

    def few_ns(self, keys: int, steps: int) -> list[int] | None:
        """Return the durations of a few steps, the first of which reads ``keys`` in all; None: ask ``run_ns`` [ns]."""
        q, constant, inverse_q, scale, fixed = self._numbers
        x, batch = keys + self._offset, self._batch
        found: list[int] = []
        for _ in range(steps):
            y = (x**q + constant) ** inverse_q * scale + fixed
            whole = int(y)
            if not APART < y - whole < 1.0 - APART or y > LONGEST_NS:
                return None
            found.append(whole)
            x += batch
        return found

    def run_ns(self, keys: int, ramp: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the durations of steps that read ``keys + ramp`` in all [ns].

        Adding ``keys`` and the offset to the ramp is exact, so a step's value does not depend on where its run began.
        """
        if (
            not self._arrays
        ):  # as 0-d arrays they cost half of what Python's floats do in an operation on arrays
            self._arrays = list(map(np.array, self._numbers))
        q, constant, inverse_q, scale, fixed = self._arrays
        y = ramp + (keys + self._offset)
        np.power(y, q, y)
        y += constant
        np.power(y, inverse_q, y)
        y *= scale
        y += fixed
        return y.astype(np.int64)


@final
class Ramps:
    """``batch * (0, 1, ..., steps - 1)`` as exact floats, kept by batch."""

    def __init__(self) -> None:
        self._known: dict[int, NDArray[np.float64]] = {}

    def of(self, batch: int, steps: int) -> NDArray[np.float64]:
        """Return the ramp of a batch."""
        found = self._known.get(batch)
        if found is None or len(found) < steps:
            found = self._known[batch] = batch * np.arange(max(steps, _RAMP), dtype=np.float64)
        return found[:steps]
