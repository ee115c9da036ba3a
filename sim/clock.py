"""The simulated clock: SimPy counting whole nanoseconds."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import simpy
from simpy.events import Event, Timeout

if TYPE_CHECKING:
    from collections.abc import Callable


class Clock(simpy.Environment):
    """A SimPy environment in which every time is an ``int`` [ns].

    SimPy allows floats as well; here a float, or a NumPy number, would make the clock inexact for good.

    Attributes
    ----------
    composed_ns : where engines take turns, the last instant at which one of them had its turn to compose [ns]
    """

    composed_ns: int = -1

    if TYPE_CHECKING:

        @property
        def now(self) -> int:
            """The time [ns]."""
            ...


FAILURES, RETURNS, ARRIVALS, STEPS, LATE = 2, 3, 4, 5, 6
"""The order of one instant where several engines share a clock: after whatever ends at it (SimPy's own priority, 1)
come replicas that fail, then replicas that are back and requests that those which failed gave back, then the requests
that arrive, then the composing of steps, then requests that arrive because of that."""


@final
class _Call(Event):
    """An event that is due at a time, and at a place in the order of that instant."""

    def __init__(self, env: Clock, time_ns: int, callback: Callable[[Event], None], place: int) -> None:
        self.env = env
        self.callbacks = [callback]
        self._value = None
        self._ok = True
        env.schedule(self, place, time_ns - env.now)  # pyright: ignore[reportArgumentType]


def call_in_turn(
    env: Clock, time_ns: int, callback: Callable[[simpy.Event], None], place: int
) -> simpy.Event:
    """Call back at a time that is not past, after all that comes before ``place`` at that instant [ns]."""
    return _Call(env, time_ns, callback, place)


def is_late(env: Clock) -> bool:
    """Tell whether the composing of steps at this instant has begun."""
    return env.composed_ns == env.now


def call_at(env: Clock, time_ns: int, callback: Callable[[simpy.Event], None]) -> simpy.Event:
    """Call back at a time that is not past, with the event that is returned [ns]."""
    event = Timeout(env, time_ns - env.now)
    event.callbacks.append(callback)  # pyright: ignore[reportOptionalMemberAccess, reportUnknownMemberType]
    return event


def call_when(event: simpy.Event, callback: Callable[[simpy.Event], None]) -> simpy.Event:
    """Call back when an event happens that has not happened yet."""
    event.callbacks.append(callback)  # pyright: ignore[reportOptionalMemberAccess, reportUnknownMemberType]
    return event
