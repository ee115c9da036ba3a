"""Latency against load: one scenario at rates from a tenth of what it sustains to beyond it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..scenario.schema import Scenario
from .point import Point
from .search import FASTEST, at_rate
from .study import Plan, StudyError
from .sweep import sweep

Progress = Callable[[int, int], None]
RATE = "workload.arrivals.rate_per_s"
SHARES: tuple[float, ...] = (0.1, 0.3, 0.5, 0.7, 0.85, 1.0, 1.15, 1.35, 1.6)
"""Rates that are run, as shares of the throughput with all requests at once."""
REPEAT = 3


@dataclass(frozen=True, slots=True)
class LoadCurve:
    """A scenario over the rate at which requests come.

    Attributes
    ----------
    points : by rate, means over seeds with 90 % intervals; ``settings`` holds the rate [requests/s]
    ceiling_per_s : throughput with all requests at once [requests/s]
    knee_per_s : rate at which throughput over mean E2E latency is largest; None where no rate is steady [requests/s]
    within_per_s : largest of these rates at which the SLO was met, with all below it; None where none was, or there is
        no SLO [requests/s]
    requests, repeat : of every rate: requests of a run, and runs
    """

    points: tuple[Point, ...]
    ceiling_per_s: float
    knee_per_s: float | None
    within_per_s: float | None
    requests: int
    repeat: int

    def to_dict(self) -> dict[str, Any]:
        """Return the curve as plain data."""
        return {
            "points": [
                each.to_dict() | {"stability": each.summary["verdict"]["stability"]} for each in self.points
            ],
            "ceiling_per_s": self.ceiling_per_s,
            "knee_per_s": self.knee_per_s,
            "within_per_s": self.within_per_s,
            "requests": self.requests,
            "repeat": self.repeat,
        }


def load_curve(
    scenario: Scenario,
    folder: str | os.PathLike[str],
    *,
    requests: int,
    repeat: int = REPEAT,
    shares: Sequence[float] = SHARES,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> LoadCurve:
    """Run a scenario at several rates: the same requests, closer or further apart.

    The knee is where throughput over latency, the *power* of a queue, is largest (Kleinrock, 1979): a slower load
    leaves the machine idle, a faster one mostly waits.

    Parameters
    ----------
    scenario : one replica with arrivals at a rate, or a trace
    folder : where runs are kept; those that are there are not done again
    requests : of each run
    repeat : runs of each rate, with seeds of their own
    shares : rates, as shares of the throughput with all requests at once
    jobs : processes; default: one for each core. The figures do not depend on it
    progress : called with the runs that are done, and all of them

    Raises
    ------
    StudyError : a load without a rate, or a folder that cannot be written
    MemboundError : a scenario that cannot be resolved or run
    """
    workload = scenario.workload
    if workload is None or (workload.trace is None and not hasattr(workload.arrivals, "rate_per_s")):
        raise StudyError("workload.arrivals: a load curve needs arrivals with a rate_per_s, or a trace")
    total = 1 + len(shares) * repeat
    burst = Plan("burst", ({RATE: FASTEST},), (_at(scenario, FASTEST, requests),), 1)
    first = sweep(burst, folder, jobs=1).points[0]
    if first.error:
        raise StudyError(first.error)
    ceiling = first.metrics["throughput.requests_per_s"] or 0.0
    if not ceiling:
        raise StudyError("no request completes, at whatever rate they come")
    if progress is not None:
        progress(1, total)
    rates = [float(f"{share * ceiling:.3g}") for share in shares]
    plan = Plan(
        "load",
        tuple({RATE: rate} for rate in rates),
        tuple(_at(scenario, rate, requests) for rate in rates),
        repeat,
    )

    def told(done: int, _: int) -> None:
        if progress is not None:
            progress(1 + done, total)

    points = sweep(plan, folder, jobs=jobs, progress=told).points
    failed = next((point.error for point in points if point.error), "")
    if failed:
        raise StudyError(failed)
    return LoadCurve(points, ceiling, _knee(points), _within(points, scenario), requests, repeat)


def _at(scenario: Scenario, rate_per_s: float, requests: int) -> Scenario:
    """Return the scenario at a rate, as it was asked, so that its run has the name that a sweep gives it."""
    workload = scenario.workload
    assert workload is not None
    if workload.trace is None:
        return scenario.replace(workload__arrivals__rate_per_s=rate_per_s, workload__requests=requests)
    found = at_rate(scenario, rate_per_s, requests).scenario.workload
    assert found is not None
    assert found.trace is not None
    return scenario.replace(
        workload__trace__limit=found.trace.limit, workload__trace__time_scale=found.trace.time_scale
    )


def _steady(point: Point) -> bool:
    return point.summary["verdict"]["stability"] == "steady"


def _knee(points: Sequence[Point]) -> float | None:
    powers = {
        float(point.settings[RATE]): rate / latency
        for point in points
        if _steady(point)
        and (rate := point.metrics["throughput.requests_per_s"])
        and (latency := point.metrics["latency.e2e_s.mean"])
    }
    return max(powers, key=lambda rate: powers[rate]) if powers else None


def _within(points: Sequence[Point], scenario: Scenario) -> float | None:
    if scenario.slo is None or not scenario.slo.classes:
        return None
    reached: float | None = None
    for point in points:
        attained = point.metrics["slo.attainment"]
        if not _steady(point) or attained is None or attained < scenario.slo.attainment:
            break
        reached = float(point.settings[RATE])
    return reached
