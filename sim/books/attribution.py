"""Where the time of single requests went: the causes of the steps they lived through."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ...hwmodels.account import STEP_CAUSES
from .record import CAUSES

if TYPE_CHECKING:
    from ..engine.request import Request

Int64Array = npt.NDArray[np.int64]
FIELDS = 4
CHARGED: tuple[str, ...] = (*STEP_CAUSES, "bubble", "transfer")
"""What the time of a step can be charged to: its own causes, pipeline bubbles, and waiting for KV transfers."""


class RequestAttribution:
    """Charges each request's time to causes, step by step.

    Of a request's TTFT it says what the steps were spent on from the first that it was part of to the one that gave its
    first token; the rest of its TTFT is waiting. Of its decode time it says what all the steps from there to its last
    token were spent on. A step's time is charged in full to everybody who lives through it.
    """

    def __init__(self) -> None:
        self._alive: dict[Request, None] = {}
        self._ended = array("q")
        self._rows: list[Int64Array] = []
        # Causes summed over all steps before step ``_first + i``, shape (steps + 1, causes).
        self._first = 0
        self._sums: Int64Array = np.zeros((1, len(CHARGED)), dtype=np.int64)

    def scheduled(self, request: Request, step: int) -> None:
        """Learn that a request is part of its first step."""
        if request.scheduled_step < 0:
            request.scheduled_step = step
            self._alive[request] = None

    def ended(self, request: Request, last_step: int) -> None:
        """Learn that a request got its last token in a step."""
        del self._alive[request]
        self._ended.extend((request.index, request.scheduled_step, request.first_token_step, last_step))

    def add(self, causes_ns: Int64Array) -> None:
        """Take in the causes of the next steps, shape (steps, causes) [ns]."""
        self._sums = np.concatenate((self._sums, self._sums[-1] + np.cumsum(causes_ns, axis=0)))
        known = self._first + len(self._sums) - 1
        ended = np.array(self._ended, dtype=np.int64).reshape(-1, FIELDS)
        ready = ended[:, 3] < known
        self._rows.append(self._charge(ended[ready]))
        self._ended = array("q", ended[~ready].ravel().tolist())
        needed = min((request.scheduled_step for request in self._alive), default=known)
        if (~ready).any():
            needed = min(needed, int(ended[~ready, 1].min()))
        self._sums = self._sums[max(needed - self._first, 0) :].copy()
        self._first = max(needed, self._first)

    def _charge(self, ended: Int64Array) -> Int64Array:
        """Return index, causes until the first token and causes after it, shape (requests, 1 + 2 causes)."""
        scheduled, first, last = (ended[:, column] - self._first for column in (1, 2, 3))
        until = self._sums[first + 1] - self._sums[scheduled]
        after = self._sums[last + 1] - self._sums[first + 1]
        return np.concatenate((ended[:, :1], until, after), axis=1)

    def table(self, indices: Int64Array) -> dict[str, Int64Array]:
        """Return ``ttft`` and ``decode`` -> time by cause of the requests ``indices``, shape (n, len(CAUSES)) [ns]."""
        rows = (
            np.concatenate(self._rows) if self._rows else np.zeros((0, 1 + 2 * len(CHARGED)), dtype=np.int64)
        )
        place = np.searchsorted(indices, rows[:, 0])
        found: dict[str, Int64Array] = {}
        for phase, start in (("ttft", 1), ("decode", 1 + len(CHARGED))):
            table = np.zeros((len(indices), len(CAUSES)), dtype=np.int64)
            for number, cause in enumerate(CHARGED):
                table[place, CAUSES.index(cause)] = rows[:, start + number]
            found[phase] = table
        return found
