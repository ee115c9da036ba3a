"""Replicas that come and go with the load: how many are wanted, and when each was there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil
from typing import TYPE_CHECKING, Any, final

from ..clock import RETURNS, Call
from ..metrics.slo import later_than
from .failures import loading_ns
from .fleet import Fleet

if TYPE_CHECKING:
    import simpy

    from ..clock import Clock
    from ..engine.request import Request
    from ..router.base import Router
    from ..scenario.cluster import Autoscale
    from ..scenario.resolve import ResolvedScenario
    from .replica import Replica

NS_PER_S = 1_000_000_000
TOLERANCE = 0.1
"""A metric within this share of its target changes nothing, as in Kubernetes."""


@final
class Scaler:
    """The rules of an autoscaler, and the books of the replicas' lives.

    Parameters
    ----------
    asked : the rules
    first : replicas that are there from the start
    seats : most requests that a replica may run
    starting_ns : what starting takes each replica, its weights included [ns]
    met : tells whether a request that has ended met its thresholds
    attainment : share of the requests that must

    Attributes
    ----------
    lives : of each replica, from when to when it was there; None: to the end [ns]
    ups, downs : replicas that were started, and that were told to end
    """

    def __init__(
        self,
        asked: Autoscale,
        first: int,
        seats: int,
        starting_ns: Sequence[int],
        met: Callable[[Request], bool] = lambda request: True,
        attainment: float = 1.0,
    ) -> None:
        self.asked, self.first, self.seats, self.starting_ns = asked, first, seats, starting_ns
        self.met, self.attainment = met, attainment
        self.every_ns = max(round(asked.every * NS_PER_S), 1)
        self.lives: list[list[tuple[int, int | None]]] = [
            [(0, None)] if number < first else [] for number in range(len(starting_ns))
        ]
        self.ups = self.downs = 0
        self._ended = self._good = 0
        self._wishes: list[tuple[int, int]] = []

    def ended(self, request: Request) -> None:
        """Learn that a request has ended; only the SLO asks how."""
        if self.asked.metric == "slo":
            self._ended += 1
            self._good += self.met(request)

    def wanted(self, now_ns: int, there: int, ready: int, metric: float | None) -> int:
        """Return how many replicas there should be now.

        Parameters
        ----------
        there : replicas that are ready, start, or have failed
        ready : those of them that the metric is of
        metric : its value; None where it is that of the scaler itself, or is of nobody
        """
        asked = self.asked
        if asked.metric == "slo":
            missed = self._ended > 0 and self._good < self.attainment * self._ended
            wish = there if not self._ended else there + 1 if missed else there - 1
            self._ended = self._good = 0
        elif metric is None:
            wish = there
        else:
            ratio = metric / asked.wanted
            wish = there if abs(ratio - 1.0) <= TOLERANCE else ceil(ready * ratio - 1e-9)
        wish = min(max(wish, asked.min), asked.max)
        since = now_ns - round(asked.scale_down_after * NS_PER_S)
        self._wishes = [each for each in self._wishes if each[0] > since] + [(now_ns, wish)]
        return wish if wish >= there else min(max(each for _, each in self._wishes), there)

    def began(self, replica: int, now_ns: int) -> None:
        """Note that a replica is started."""
        self.ups += 1
        self.lives[replica].append((now_ns, None))

    def over(self, replica: int, now_ns: int) -> None:
        """Note that a replica is there no more."""
        since, _ = self.lives[replica].pop()
        self.lives[replica].append((since, now_ns))

    def alive_ns(self, replica: int, start_ns: int, end_ns: int) -> int:
        """Return for how long a replica was there within a span [ns]."""
        return sum(
            max((end_ns if until is None else min(until, end_ns)) - max(since, start_ns), 0)
            for since, until in self.lives[replica]
        )

    def figures(self, start_ns: int, end_ns: int, gpus: int) -> dict[str, Any]:
        """Return what the summary says of an autoscaled cluster; ``gpus`` of one replica."""
        alive = sum(self.alive_ns(replica, start_ns, end_ns) for replica in range(len(self.lives)))
        span = end_ns - start_ns
        return {
            "started": self.ups,
            "ended": self.downs,
            "peak_replicas": self._peak(),
            "mean_replicas": alive / span if span else None,
            "gpu_hours": alive * gpus / NS_PER_S / 3600,
            "cold_start_s": max(self.starting_ns) / NS_PER_S,
        }

    def _peak(self) -> int:
        changes = sorted(
            change
            for lives in self.lives
            for since, until in lives
            for change in ((since, 1), *(() if until is None else ((until, -1),)))
        )
        count = most = 0
        for _, change in changes:
            count += change
            most = max(most, count)
        return most


@final
class ElasticFleet(Fleet):
    """Replicas behind a router that are started and ended by an autoscaler.

    It looks every so often, after what ends at that instant. A replica that is told to end takes no more requests; when
    the last of them has ended it is gone, with its prefix cache. One that has failed counts as there.

    Parameters
    ----------
    scaler : the rules and the books
    env, replicas, router, on_finish, others : as of `Fleet`
    """

    def __init__(
        self,
        env: Clock,
        replicas: Sequence[Replica],
        router: Router,
        on_finish: Callable[[Request], None],
        scaler: Scaler,
        **others: Any,
    ) -> None:
        self.scaler = scaler
        self.starting: set[int] = set()
        self.draining: set[int] = set()
        super().__init__(env, replicas, router, on_finish, **others)
        self._look_later()

    def _at_first(self, count: int) -> list[int]:
        return list(range(self.scaler.first))

    def _look_later(self) -> None:
        Call(self.env, self.env.now + self.scaler.every_ns, self._look, RETURNS)

    def _look(self, _event: simpy.Event) -> None:
        if self.closed:
            return
        failed = self.down - self.draining
        there = len(self.ready) + len(self.starting) + len(failed)
        wanted = self.scaler.wanted(self.env.now, there, len(self.ready), self._metric())
        taken = {*self.ready, *self.starting, *self.draining, *failed}
        free = [number for number in range(len(self.engines)) if number not in taken]
        for replica in free[: max(wanted - there, 0)]:
            self._begin(replica)
        for _ in range(min(there - wanted, len(self.ready) - 1)):
            self._end(min(self.ready, key=lambda each: (self.outstanding[each], -each)))
        self._look_later()

    def _metric(self) -> float | None:
        """Return what the rules look at: mean over the replicas that are ready; None where there is none."""
        if not self.ready:
            return None
        if self.scaler.asked.metric == "outstanding":
            waiting = sum(self.outstanding[each] for each in self.ready) + len(self.line)
            return waiting / len(self.ready)
        if self.scaler.asked.metric == "slo":
            return None
        used = [
            max(self.kv_usage(each), len(self.engines[each].running) / self.scaler.seats)
            for each in self.ready
        ]
        return sum(used) / len(used)

    def _begin(self, replica: int) -> None:
        """Start a replica."""
        self.starting.add(replica)
        self.scaler.began(replica, self.env.now)

        def up(event: simpy.Event) -> None:
            if not self.closed:
                self.starting.discard(replica)
                self.ready = sorted([*self.ready, replica])
                self._expect_failure(replica)
                self._settle(event)

        Call(self.env, self.env.now + self.scaler.starting_ns[replica], up, RETURNS)

    def _end(self, replica: int) -> None:
        """Send a replica no more requests, and end it when those it has have ended."""
        self.scaler.downs += 1
        self._take_out(replica)
        self.draining.add(replica)
        self._end_if_empty(replica)

    def _end_if_empty(self, replica: int) -> None:
        if replica in self.draining and not self.outstanding[replica] and replica not in self.down:
            # A step composed for the last of them may still run.
            idle_ns = max(self.engines[replica].device_free_ns, self.env.now)
            Call(self.env, idle_ns, lambda _: self._shut(replica), RETURNS)

    def _shut(self, replica: int) -> None:
        if self.closed or replica not in self.draining:
            return
        self.draining.discard(replica)
        self._ups[replica] += 1
        self.scaler.over(replica, self.env.now)
        allocator = self.engines[replica].allocator
        allocator.forget(allocator.free_blocks)

    def _take_out(self, replica: int) -> None:
        if replica in self.ready:
            super()._take_out(replica)

    def _put_back(self, replica: int) -> None:
        if replica in self.draining:
            self._end_if_empty(replica)
        else:
            super()._put_back(replica)

    def _ended_on(self, replica: int) -> Callable[[Request], None]:
        inner = super()._ended_on(replica)

        def ended(request: Request) -> None:
            self.scaler.ended(request)
            inner(request)
            self._end_if_empty(replica)

        return ended


def scaler_of(resolved: ResolvedScenario, asked: Autoscale, replicas: Sequence[Replica]) -> Scaler:
    """Return the autoscaler of a scenario.

    Raises
    ------
    TierError : no host link is known over which weights could be loaded
    """
    slo = resolved.scenario.slo
    return Scaler(
        asked,
        resolved.scenario.cluster.total,
        resolved.scheduler.max_num_seqs,
        [_starting_ns(asked, replica) for replica in replicas],
        _judge(resolved),
        1.0 if slo is None else slo.attainment,
    )


def _starting_ns(asked: Autoscale, replica: Replica) -> int:
    """Return how long a replica takes from the decision to start it until it takes requests [ns]."""
    start_up = round(asked.start_up * NS_PER_S)
    if asked.storage_bandwidth is None:
        return start_up + loading_ns(replica)
    ranks = replica.kind.gpus
    weights = ranks * max(stage.weights.total for stage in replica.kind.pool.stages)
    return start_up + round(weights / asked.storage_bandwidth * NS_PER_S)


def _judge(resolved: ResolvedScenario) -> Callable[[Request], bool]:
    """Return what tells whether a request that has ended met its class's thresholds."""
    overhead_s = resolved.engine.client_overhead_s if resolved.engine.scope == "full" else 0.0
    classes: Mapping[str, Mapping[str, float]] = resolved.slo_classes

    def met(request: Request) -> bool:
        asked = classes.get(request.slo_class, {})
        return request.last_token_ns >= 0 and not any(
            later_than(metric, limit_s, lambda name: getattr(request, name), overhead_s)
            for metric, limit_s in asked.items()
        )

    return met
