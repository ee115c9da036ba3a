"""The highest rate that one replica sustains within its SLO: a bracketing search over runs with common draws."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..run import simulate
from ..scenario.resolve import ResolvedScenario, resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..scenario.schema import Scenario

Z90 = 1.6449
TOLERANCE = 0.04
"""The search ends when the bracket is this narrow, relative to its upper end."""
HEADROOM = 2.0
"""No steady rate is so many times the throughput with all requests at once, whose end is a drain."""
LOWEST = 0.01
"""The search gives up below this share of that throughput."""
LONGER = 1
"""How often a run that is too short to say is run again with four times the requests."""
CONFIRM = 4
"""What the search ends with is confirmed by a run of so many times the requests."""
HOPELESS = 0.8
"""An attainment below this share of the target is not looked at again."""
FASTEST = 1e6
"""A rate at which all requests come at once, as far as an engine can tell [requests/s]."""


@dataclass(frozen=True, slots=True)
class Probe:
    """One run of the search.

    Attributes
    ----------
    rate_per_s : arrivals [requests/s]
    attainment : share of the requests that met their thresholds
    n : requests
    state : ``steady``, or why not; see ``sim.stability``
    summary : the whole summary
    """

    rate_per_s: float
    attainment: float
    n: int
    state: str
    summary: Mapping[str, Any]

    def meets(self, target: float) -> bool:
        """Tell whether the SLO held in a steady state."""
        return self.state == "steady" and self.attainment >= target

    def interval(self) -> tuple[float, float]:
        """Return the 90 % interval of the attainment (Wilson's score).

        Approximation: requests count as independent; those of one burst share their fate, so the interval is a
        little narrow near saturation.
        """
        p, n, z = self.attainment, self.n, Z90
        centre = (p + z * z / (2 * n)) / (1 + z * z / n)
        half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
        return centre - half, centre + half


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the search found.

    Attributes
    ----------
    best : the fastest probe that met the SLO; None if none did
    above : the slowest that did not; None if all did
    ceiling_per_s : throughput with all requests at once [requests/s]
    runs : how many runs it took
    """

    best: Probe | None
    above: Probe | None
    ceiling_per_s: float
    runs: int

    @property
    def rate_per_s(self) -> float:
        """The highest sustainable rate found; 0 where none is [requests/s]."""
        return self.best.rate_per_s if self.best else 0.0

    @property
    def span(self) -> tuple[float, float]:
        """The rates between which the highest sustainable rate lies [requests/s]."""
        upper = self.above.rate_per_s if self.above else HEADROOM * self.ceiling_per_s
        return self.rate_per_s, upper


def at_rate(scenario: Scenario, rate_per_s: float, requests: int) -> ResolvedScenario:
    """Return the scenario with its load at another mean rate: the same requests, closer or further apart.

    Draws belong to requests, so lengths stay and gaps scale: two rates share their random numbers.
    """
    workload = scenario.workload
    assert workload is not None
    if workload.trace is None:
        return resolve(
            scenario.replace(workload__arrivals__rate_per_s=rate_per_s, workload__requests=requests)
        )
    limited = scenario.replace(workload__trace__limit=min(requests, workload.trace.limit or requests))
    load = resolve(limited).workload
    assert load is not None
    spans_s = float(load.arrival_ns[-1] - load.arrival_ns[0]) / 1e9
    scale = workload.trace.time_scale * (len(load) - 1) / spans_s / rate_per_s if spans_s else 1.0
    return resolve(limited.replace(workload__trace__time_scale=scale))


def probe(scenario: Scenario, rate_per_s: float, requests: int) -> Probe:
    """Run a scenario at a rate."""
    summary = simulate(at_rate(scenario, rate_per_s, requests)).summary()
    return Probe(
        rate_per_s,
        summary["slo"]["attainment"] or 0.0,
        summary["requests"]["submitted"],
        summary["verdict"].get("stability") or "unsettled",
        summary,
    )


def highest_rate(
    scenario: Scenario,
    requests: int,
    *,
    worth: float = 0.0,
    ceiling_per_s: float = 0.0,
    told: Callable[[Probe], None] | None = None,
) -> Capacity:
    """Find the highest rate at which one replica meets its SLO in a steady state.

    The attainment falls as the rate grows (the same requests, closer together). From the throughput of a run
    with all requests at once the rate is raised or lowered by half until one meets the SLO and one does not, and
    the bracket is halved until it is 4 % wide. The rate found is confirmed by a longer run, and lowered by steps of
    4 % until one confirms it. A run that is too short to say (requests stay too long for the time
    it covers, or the attainment is neither surely within nor surely beyond) is run again with four times the
    requests; if it still does not settle, the rate does not count as sustained.

    Parameters
    ----------
    scenario : one replica, with an SLO
    requests : requests of one run
    worth : only if it is at least this rate: that is tried first, and where it is not sustained nothing else is
        [requests/s]
    ceiling_per_s : throughput with all requests at once, where it is known already [requests/s]
    told : called with every run that says whether a rate is sustained
    """
    assert scenario.slo is not None
    target = scenario.slo.attainment
    runs = 0
    if worth:
        found, runs = _settled(scenario, worth, requests, target, told)
        if not found.meets(target):
            return Capacity(None, found, ceiling_per_s, runs)
    if not ceiling_per_s:
        at_once = probe(scenario, FASTEST, requests)
        ceiling_per_s = at_once.summary["throughput"]["requests_per_s"] or 0.0
        runs += 1
    low, high = 0.0, math.inf
    best: Probe | None = None
    above: Probe | None = None
    rate = ceiling_per_s
    while rate > LOWEST * ceiling_per_s and (math.isinf(high) or high - low > TOLERANCE * high):
        found, took = _settled(scenario, rate, requests, target, told)
        runs += took
        if found.meets(target):
            low, best = rate, found
        else:
            high, above = rate, found
        rate = 1.5 * low if high == math.inf else (low + high) / 2 if best else high / 2
    # Lines near saturation grow slowly: what a short run sustains must hold in a longer one.
    while best is not None and best.n < CONFIRM * requests:
        found, took = _settled(scenario, best.rate_per_s, CONFIRM * requests, target, told, longer=0)
        runs += took
        if found.n <= best.n or found.meets(target):
            best = found
            break
        above, lower = found, best.rate_per_s * (1.0 - TOLERANCE)
        best = replace(best, rate_per_s=lower) if lower > LOWEST * ceiling_per_s else None
    return Capacity(best, above, ceiling_per_s, runs)


def _settled(
    scenario: Scenario,
    rate_per_s: float,
    requests: int,
    target: float,
    told: Callable[[Probe], None] | None,
    longer: int = LONGER,
) -> tuple[Probe, int]:
    """Return a run that says whether a rate is sustained, and how many runs that took."""
    runs = 0
    while True:
        found = probe(scenario, rate_per_s, requests * 4**runs)
        if told is not None:
            told(found)
        low, high = found.interval()
        short = found.state in ("unsettled", "batch") or (found.state == "steady" and low < target <= high)
        all_there_are = found.n < requests * 4**runs
        runs += 1
        # What leaves most beyond their thresholds in a short time does so for longer, too.
        if not short or found.attainment < HOPELESS * target or all_there_are or runs > longer:
            return found, runs
