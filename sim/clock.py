"""The simulated clock: SimPy counting whole nanoseconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import simpy
from simpy.events import Timeout

if TYPE_CHECKING:
    from collections.abc import Callable


class Clock(simpy.Environment):
    """A SimPy environment in which every time is an ``int`` [ns].

    SimPy allows floats as well; here a float, or a NumPy number, would make the clock inexact for good.
    """

    if TYPE_CHECKING:

        @property
        def now(self) -> int:
            """The time [ns]."""
            ...


def call_at(env: Clock, time_ns: int, callback: Callable[[simpy.Event], None]) -> simpy.Event:
    """Call back at a time that is not past, with the event that is returned [ns]."""
    event = Timeout(env, time_ns - env.now)
    event.callbacks.append(callback)  # pyright: ignore[reportOptionalMemberAccess, reportUnknownMemberType]
    return event


def call_when(event: simpy.Event, callback: Callable[[simpy.Event], None]) -> simpy.Event:
    """Call back when an event happens that has not happened yet."""
    event.callbacks.append(callback)  # pyright: ignore[reportOptionalMemberAccess, reportUnknownMemberType]
    return event
