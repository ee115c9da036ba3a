"""The shared resources of one device: works made of phases that slow each other where they contend.

Rates come from `sharing.fair_rates` and change only when a phase starts or ends. Time is whole nanoseconds,
and so is every phase boundary on a work's own clock (rounded cumulative sums of the phases' seconds): at
rate 1 a work ends exactly where the step model says. Below rate 1 progress is a float, and a phase ends in
the first nanosecond in which it is complete; what it overshoots counts for the next phase, so nothing
accumulates. What happens within one nanosecond does not depend on the order in which SimPy delivers it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import final

import simpy

from ...hwmodels.steptypes import Phase
from .sharing import FairRate, Plan, ResourceError, beside_others, fair_shares, lay_out

_CAPACITIES: Mapping[str, float] = dict.fromkeys(("hbm", "compute", "link", "host", "h2d", "d2h"), 1.0)
_COMPLETE_NS = 1e-6  # progress this close to a boundary has reached it: float noise, not a nanosecond more
_NOT_KNOWN: tuple[Mapping[str, float]] = ({},)
_FREE = FairRate(1.0, None)
_ALONE = 1.0, _FREE


@final
class Work:
    """A submitted work; ``done`` fires, with the work as value, when its last phase ends or it is cancelled.

    Only its device writes to it. Progress at time t is ``base + rate * (t - since)`` [ns of its own time];
    the base moves only when the rate does, so a work that was never slowed carries no rounding at all.

    Attributes
    ----------
    start_ns, end_ns : when it ran [ns]; the end is -1 while it does
    phase_ends_ns : when each phase ended, so far as the device has had to look [ns]
    completed : whether every phase has run to its end
    waited_ns : resource -> how much longer it took so far because others held it (``compute`` also where it was
        held to its share of the units), up to the last change of its rate [ns]
    """

    __slots__ = (
        "base", "completed", "device", "done", "end_ns", "late_phases", "look_ns", "phase_ends_ns", "plan",
        "rate", "share", "since", "start_ns", "waited_ns", "waits_since",
    )  # fmt: skip

    def __init__(
        self, device: SharedDevice, now: int, plan: Plan, late_phases: Callable[[], Sequence[Phase]] | None
    ) -> None:
        self.device = device
        self.done = simpy.Event(device.env)
        self.plan = plan
        self.late_phases = late_phases
        self.start_ns = self.since = self.look_ns = self.waits_since = now
        self.base: float = 0.0
        self.rate: float = 1.0
        self.share = _ALONE
        self.waited_ns: dict[str, float] = {}
        self.phase_ends_ns: list[int] = []
        self.end_ns = -1
        self.completed = False

    def cancel(self) -> bool:
        """Stop now and free what it holds; False when it had already ended."""
        return self.device.cancel(self)

    @property
    def load(self) -> Mapping[str, float]:
        """Share of each resource that the current phase holds at full speed."""
        return self.plan.loads[len(self.phase_ends_ns)]

    @property
    def on_share(self) -> bool:
        """Whether the current phase has compute units of its own beside others."""
        return self.plan.speeds[len(self.phase_ends_ns)] is not None

    def progress(self, now: int) -> float:
        """Return how far it is at the current rate [ns of its own time]."""
        return self.base + self.rate * (now - self.since)

    def end_of(self, bound: int) -> int:
        """Return when a boundary is reached at the current rate [ns]."""
        return self.since + max(0, math.ceil((bound - self.base - _COMPLETE_NS) / self.rate))

    def advance(self, now: int) -> Sequence[Mapping[str, float]]:
        """Pass the boundaries reached by now; return the demands of the phases that ended."""
        ends = self.phase_ends_ns
        first = len(ends)
        for bound in self.plan.bounds[first:]:
            self.look_ns = self.end_of(bound)
            if self.look_ns > now:
                return self.plan.demands[first : len(ends)]
            ends.append(self.look_ns)
        self.completed = True
        return self.plan.demands[first:]

    def partial(self, now: int) -> dict[str, float]:
        """Return what the current phase has taken of each resource so far [resource-seconds]."""
        k = len(self.phase_ends_ns)
        start = self.plan.bounds[k - 1] if k else 0
        part = (self.progress(now) - start) / max(1, self.plan.bounds[k] - start)
        return {name: demand * part for name, demand in self.plan.demands[k].items()}

    def set_rate(self, speed: float, share: FairRate, now: int) -> None:
        """Go on at another rate from now: so much of a full speed, which is so much of that alone."""
        if (speed, share) != self.share:
            self.settle_waits(now)
            self.share = speed, share
        rate = speed * share.rate
        if rate != self.rate:
            self.base, self.since, self.rate = self.progress(now), now, rate

    def settle_waits(self, now: int) -> None:
        """Add up what it has waited for since its rate last changed."""
        (speed, (rate, short)), passed = self.share, now - self.waits_since
        self.waits_since = now
        for resource, lost in (("compute", 1.0 - speed), (short, speed * (1.0 - rate))):
            if resource is not None and lost > 0.0:
                self.waited_ns[resource] = self.waited_ns.get(resource, 0.0) + lost * passed


@final
class SharedDevice:
    """The resources of one device and the works that share them.

    ``busy_ns`` is the time in which any of them was active, ``overlap_ns`` that in which k of them had it in use, host
    work aside, k - 1 times each [ns].

    A work that has the device to itself costs two SimPy events, however many phases it has.

    Parameters
    ----------
    env : SimPy environment whose clock counts whole nanoseconds
    capacities : what there is of each resource [resource-seconds per second]

    >>> env = simpy.Environment()
    >>> device = SharedDevice(env)
    >>> step = device.submit([Phase("decode", 2e-6, {"hbm": 1.5e-6})])
    >>> copy = device.submit([Phase("kv copy", 1e-6, {"hbm": 0.75e-6, "link": 1e-6})])
    >>> env.run(copy.done).end_ns, env.run(step.done).end_ns
    (1500, 2500)
    """

    def __init__(self, env: simpy.Environment, capacities: Mapping[str, float] = _CAPACITIES) -> None:
        for name, capacity in capacities.items():
            if not 0.0 < capacity < math.inf:
                raise ResourceError(f"capacity of {name!r} is {capacity}; allowed: positive and finite")
        self.env = env
        self.capacities = dict(capacities)
        self._active: list[Work] = []
        self._used = dict.fromkeys(capacities, 0.0)
        self.overlap_ns = self.busy_ns = self._beside = self._since = 0
        self._busy = False
        self._wake_ns = -1
        self._generation = 0

    def submit(
        self, phases: Sequence[Phase] | Callable[[], Sequence[Phase]], duration_ns: int | None = None
    ) -> Work:
        """Start work now.

        Parameters
        ----------
        phases : what it consists of, or a function that returns it, called only if another work comes to
            share the device before this one ends (`used` knows nothing of such a work that met no other)
        duration_ns : time alone [ns] where the caller has rounded it already; required with a function

        Raises
        ------
        ResourceError
            See `lay_out`; the device is then as before.
        """
        if not callable(phases):
            plan, late = lay_out(phases, self.capacities, duration_ns), None
        elif duration_ns is not None and duration_ns >= 0:
            plan, late = Plan((int(duration_ns),), _NOT_KNOWN, _NOT_KNOWN), phases
        else:
            raise ResourceError(f"duration_ns is {duration_ns}; a function of phases needs it, from 0 on")
        now = self._look()
        work = Work(self, now, plan, late)
        self._active.append(work)
        self._settle(now)
        self._share(now)
        return work

    def cancel(self, work: Work) -> bool:
        """Stop a work now; see `Work.cancel`."""
        now = self._look()
        found = work in self._active
        if found:
            self._credit(work.partial(now))
            self._finish(work, now)
        self._share(now)
        return found

    @property
    def n_active(self) -> int:
        """Works that have not ended by now."""
        self._settle(int(self.env.now))
        return len(self._active)

    @property
    def busy(self) -> bool:
        """Whether any work is active."""
        return self.n_active > 0

    def rates(self) -> dict[Work, float]:
        """Return the present rate of each active work."""
        self._share(self._look())
        return {work: work.rate for work in self._active}

    def used(self) -> dict[str, float]:
        """Return the integral of each resource's share in use from the start until now [resource-seconds]."""
        now = self._look()
        parts = [work.partial(now) for work in self._active]
        return {name: sum((part.get(name, 0.0) for part in parts), at) for name, at in self._used.items()}

    def _look(self) -> int:
        """Bring every work up to now: one that is alone has no wake-up between its phases."""
        now = int(self.env.now)
        for work in self._active:
            work.look_ns = now
        self._settle(now)
        return now

    def _settle(self, now: int) -> None:
        """Pass the boundaries reached by now, at the rates that held until now."""
        for work in [work for work in self._active if work.look_ns <= now]:
            self._advance(work, now)
            if work.completed:
                self._finish(work, now)

    def _advance(self, work: Work, now: int) -> None:
        for demands in work.advance(now):
            self._credit(demands)

    def _credit(self, demands: Mapping[str, float]) -> None:
        for name, demand in demands.items():
            self._used[name] += demand

    def _finish(self, work: Work, now: int) -> None:
        self._active.remove(work)
        work.settle_waits(now)
        work.end_ns = now
        _ = work.done.succeed(work)

    def _share(self, now: int) -> None:
        """Set the rates, and the wake-up at the next boundary; of a work alone only the last one counts."""
        active = self._active
        passed, self._since = now - self._since, now
        self.overlap_ns += self._beside * passed
        self.busy_ns += passed if self._busy else 0
        self._beside, self._busy = 0, bool(active)
        if len(active) == 1:
            active[0].set_rate(*_ALONE, now)
            active[0].look_ns = active[0].end_of(active[0].plan.bounds[-1])
        elif active:
            for work in active:
                if work.late_phases is not None:
                    work.plan = lay_out(work.late_phases(), self.capacities, work.plan.bounds[-1])
                    work.late_phases = None
                    self._advance(work, now)
            self._beside = max(sum("host" not in work.load for work in active) - 1, 0)
            # Compute units are shared out between those that have their own; one of them alone has all.
            split = sum(work.on_share for work in active) > 1
            full = [
                beside_others(work.plan, len(work.phase_ends_ns)) if split else (1.0, work.load)
                for work in active
            ]
            shares = fair_shares([load for _, load in full], self.capacities)
            for work, (speed, _), share in zip(active, full, shares, strict=True):
                work.set_rate(speed, share, now)
                work.look_ns = work.end_of(work.plan.bounds[len(work.phase_ends_ns)])
        self._wake_at(min([work.look_ns for work in active], default=-1), now)

    def _wake_at(self, at_ns: int, now: int) -> None:
        """Have one wake-up pending, at this time [ns] (-1: none); an earlier order is stale from here on."""
        if at_ns == self._wake_ns:
            return
        self._wake_ns = at_ns
        self._generation += 1
        if at_ns >= 0:
            wake = simpy.Timeout(self.env, at_ns - now, self._generation)
            # SimPy types its callbacks as List[Unknown]
            wake.callbacks.append(self._on_wake)  # pyright: ignore[reportUnknownMemberType]

    def _on_wake(self, wake: simpy.Event) -> None:
        if wake.value == self._generation:
            self._wake_ns = -1
            now = int(self.env.now)
            self._settle(now)
            self._share(now)
