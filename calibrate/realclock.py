"""The clock that a real engine is told by."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Time that a run is told by, from 0 on."""

    def now_ns(self) -> int:
        """Return the time [ns]."""
        ...

    def advance_to(self, time_ns: int) -> None:
        """Let time pass in which nothing is computed, until ``time_ns`` [ns]."""
        ...


class RealClock:
    """Time that the process computed, or wall time; idle time is skipped, not waited for.

    Parameters
    ----------
    cpu : count the time of all threads of this process on the processors, which a neighbour's work is not in;
        else wall time
    """

    def __init__(self, *, cpu: bool) -> None:
        self._read = time.process_time_ns if cpu else time.perf_counter_ns
        self._zero = self._read()

    def now_ns(self) -> int:
        return self._read() - self._zero

    def advance_to(self, time_ns: int) -> None:
        self._zero -= max(time_ns - self.now_ns(), 0)
