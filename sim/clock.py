"""The simulated clock: SimPy counting whole nanoseconds."""

from __future__ import annotations

from heapq import heappop, heappush
from math import inf
from typing import TYPE_CHECKING, Any, final

import simpy
from simpy.events import Event

if TYPE_CHECKING:
    from collections.abc import Callable


class Clock(simpy.Environment):
    """A SimPy environment in which every time is an ``int`` [ns].

    SimPy allows floats as well; here a float, or a NumPy number, would make the clock inexact for good.

    Attributes
    ----------
    composed_ns : where engines take turns, the last instant at which one of them had its turn to compose [ns]
    now : the time, as a plain attribute: it is asked for more often than anything else [ns]
    """

    composed_ns: int = -1
    now: int = 0

    def __init__(self, initial_time: int = 0) -> None:
        super().__init__(initial_time)
        self.now = initial_time

    def peek(self) -> int | float:
        """Return when the next event is due; infinity if there is none [ns]."""
        return self._queue[0][0] if self._queue else inf

    def step(self) -> None:
        """Process the next event; see SimPy."""
        if self._queue:
            self.now = self._queue[0][0]  # pyright: ignore[reportAttributeAccessIssue]
        super().step()

    def run(self, until: Any = None) -> Any:
        """Process events until there are none, in a loop without calls; ``until`` as in SimPy."""
        if until is not None:
            return super().run(until)
        queue: list[Any] = self._queue
        while queue:
            self.now, _, _, event = heappop(queue)  # pyright: ignore[reportIncompatibleMethodOverride]
            self._now = self.now
            callbacks, event.callbacks = event.callbacks, None
            for callback in callbacks:
                callback(event)
            if not event._ok and not hasattr(event, "_defused"):
                raise event._value
        return None


NORMAL, FAILURES, RETURNS, ARRIVALS, STEPS, LATE = 1, 2, 3, 4, 5, 6
"""The order of one instant where several engines share a clock: after whatever ends at it (SimPy's own priority, 1)
come replicas that fail, then replicas that are back and requests that those which failed gave back, then the requests
that arrive, then the composing of steps, then requests that arrive because of that."""


@final
class Call(Event):
    """Calls back at a time that is not past [ns], at a place in the order of that instant; it never fails."""

    _ok = True
    _value = None

    def __init__(
        self, env: Clock, time_ns: int, callback: Callable[[Event], None], place: int = NORMAL
    ) -> None:
        assert time_ns >= env.now
        self.env = env
        self.callbacks = [callback]
        # What ``Environment.schedule`` does.
        heappush(env._queue, (time_ns, place, next(env._eid), self))  # pyright: ignore


def is_late(env: Clock) -> bool:
    """Tell whether the composing of steps at this instant has begun."""
    return env.composed_ns == env.now


def call_when(event: simpy.Event, callback: Callable[[simpy.Event], None]) -> simpy.Event:
    """Call back when an event happens that has not happened yet."""
    event.callbacks.append(callback)  # pyright: ignore[reportOptionalMemberAccess, reportUnknownMemberType]
    return event
