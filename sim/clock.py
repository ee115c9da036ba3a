"""The simulated clock: SimPy counting whole nanoseconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import simpy


class Clock(simpy.Environment):
    """A SimPy environment in which every time is an ``int`` [ns].

    SimPy allows floats as well; here a float, or a NumPy number, would make the clock inexact for good.
    """

    if TYPE_CHECKING:

        @property
        def now(self) -> int:
            """The time [ns]."""
            ...
