"""How an engine jumps: a decode batch that repeats is taken many steps at once (a *run*) until something may change."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import numpy as np

from ..books.recorder import kv_state
from ..clock import Call, is_late
from .flight import Flight, Run
from .outputs import Outputs
from .stopping import Stopping

if TYPE_CHECKING:
    import simpy

    from ...hwmodels.cascade import SharedPrefix
    from ..scheduler.base import ScheduledBatch
    from ..tiers.mover import Mover
    from .engine import Engine
    from .flight import StepTimer
    from .request import Request
    from .speculative import Speculation

LONGEST_RUN = 4096


class Jumping(Outputs, Stopping):
    """The part of an engine that takes runs; `Engine` composes them.

    Attributes
    ----------
    run : the run under way, None without
    flights : the steps under way before it
    device_free_ns : when the last step that is composed, the run's aside, ends [ns]
    steps : how many are composed, the run's aside
    """

    run: Run | None
    flights: deque[Flight]
    device_free_ns: int
    steps: int
    timer: StepTimer
    mover: Mover | None
    speculation: Speculation | None
    shared_prefix: SharedPrefix | None
    among_others: bool
    deliver: Callable[[int], None]
    next_arrival_ns: Callable[[], int | None]
    _pace_ns: int

    def _repetitions(self, batch: ScheduledBatch, start: int) -> int:
        """Return how often the pure decode step just composed is sure to repeat [steps]."""
        if self.individuals or batch.tokens or (self.speculation and self.timer.needs_contexts):
            return 0
        if self.mover is not None and self._moves(self.mover):
            return 0
        for ahead in self.flights:
            if ahead.last and self.shared_prefix is not None:
                return 0  # without those who end, the others may share more
            # A request that ends meanwhile leaves its place to whoever waits; an over-running one leaves the batch.
            if ahead.late or (
                ahead.last and (self.waiting or any(map(self.decoding.members.__contains__, ahead.last)))
            ):
                return 0
            if ahead.last and self._drafts(len(self.running) - len(ahead.last)) != self.decoding.queries:
                return 0
        more = min(
            self.scheduler.stable_steps(cast("Engine", self), batch),
            self.decoding.steps_to_last(),
            LONGEST_RUN,
        )
        arrival = self.next_arrival_ns()
        if arrival is not None and self._pace_ns:
            # Only to spare work: what is computed beyond the next arrival is likely to be cut off.
            more = min(more, max((arrival - start) // self._pace_ns + 2, 1))
        return self.allocator.stable_steps(self.decoding, more)

    def _moves(self, mover: Mover) -> bool:
        """Tell whether transfers are ordered, or will be by what is about to become known."""
        tracked = self.allocator.tracks_content_of
        return mover.ordered or any(any(map(tracked, ahead.emitting)) for ahead in self.flights)

    def _begin_run(self, first: Flight, durations_ns: list[int], now: int) -> None:
        """Take a run of steps, up to what is known to change a decision."""
        run = self.run = Run(first, durations_ns)
        self._pace_ns = durations_ns[0]
        first.end_ns = run.bounds_ns[1]
        if not self.waiting:
            # Known beforehand: whoever arrives next is seen at once, without cutting the run when it happens.
            arrival = self.next_arrival_ns()
            if arrival is not None:
                run.shorten(arrival, self.depth)
        change = self.scheduler.next_change_ns(cast("Engine", self))
        if change is not None:
            run.shorten(change, self.depth)
        self._continue_run(now)

    def _continue_run(self, now: int) -> bool:
        """Wake up at the next composition that may differ, or when requests end before it; False if that is now."""
        assert self.run is not None
        due = self.run.due_ns(self.depth)
        if due <= now:
            return False
        flights = self.flights
        if flights and flights[0].last:
            due = flights[0].end_ns
        self._wake = Call(self.env, due, self._on_wake)
        return True

    def _cut(self, now: int) -> None:
        """End the run at the first composition that sees what arrived now: those made now have not if it came late."""
        late = self.among_others and is_late(self.env)
        if self._shorten_run(now + late) and not self._continue_run(now):
            self._wake_at(now)

    def _shorten_run(self, arrival_ns: int) -> bool:
        """End the run at the first composition that sees an arrival; False if it ends before anyway."""
        assert self.run is not None
        return self.run.shorten(arrival_ns, self.depth)

    def _settle_run(self) -> None:
        """Apply the steps of the run that have ended; the last one stays in flight if it was composed ahead."""
        run, self.run = self.run, None
        assert run is not None
        first, bounds, cohort = run.first, run.bounds_ns, self.decoding
        steps = len(bounds) - 1
        more, end = steps - 1, bounds[-1]
        blocks = cohort.blocks_by_step(more)
        if more:
            self.allocator.grow(cohort, more)
            self.live_tokens += cohort.advance(more)
            if self.padding.count:
                self.padding.advance(more)
        self.recorder.end_run(run.durations_ns[:steps], bounds[1:], blocks)
        self.steps += steps
        self.device_free_ns = end
        if self.observer is not None:
            self.observer.repeated(cast("Engine", self), first, np.array(bounds[:-1]), np.array(bounds[1:]))
        tail = first
        if self.depth == 1:
            first.end_ns, first.steps = end, steps
        elif more:
            first.end_ns, first.steps = bounds[-2], more
            self._apply(first)
            tail = Flight(bounds[-3], bounds[-2], end, first.step + more, 1)
        tail.last = cohort.at_last()
        if tail.last:
            self._retire(tail.last, None, tail.step - 1)
        if self.depth == 1:
            self._apply(first)
        else:
            self.flights.append(tail)

    def _apply_before_run(self, flight: Flight, now: int) -> None:
        """Hand out the tokens of the step before the run, with which requests end, and see who comes for them."""
        engine = cast("Engine", self)
        before = kv_state(engine)
        self._apply(flight)
        self.recorder.released(before, kv_state(engine))
        self.deliver(now)
        if self.waiting:
            self._shorten_run(now)

    def _on_wake(self, event: simpy.Event) -> None:
        raise NotImplementedError

    def _drafts(self, running: int) -> int:
        raise NotImplementedError

    def _retire(self, last: list[Request], ahead: Flight | None, applied: int) -> None:
        raise NotImplementedError
