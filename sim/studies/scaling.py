"""How far more of one thing helps: a device number scaled step by step, and what takes over where it stops helping."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ...hwmodels.errors import MemboundError
from ..scenario.resolve import resolve
from ..scenario.schema import Scenario
from .effects import better
from .explain import CACHE, REQUESTS, metric_of
from .fewer import with_requests
from .store import kept_in
from .study import Plan, StudyError
from .sweep import sweep

if TYPE_CHECKING:
    from .point import Point

Progress = Callable[[int, int], None]
FACTORS = (0.5, 0.75, 1.0, 1.5, 2.0, 3.0)
WORTH = 0.1
"""Below this gain for each unit of ln of the number, more of it no longer helps: 10 % more brings less than 1 %."""
CAUSES_OF: Mapping[str, tuple[str, ...]] = {
    "hbm_bandwidth": ("hbm_weights", "hbm_kv", "hbm_activations"),
    "peak_flops": ("compute",),
    "link": ("communication",),
    "pcie": ("transfer",),
}
"""Device number -> the causes of time that it shortens."""
LIMITERS_OF: Mapping[str, tuple[str, ...]] = {"hbm_capacity": ("kv_blocks",), "usable_memory": ("kv_blocks",)}
"""Device number -> the limits of the batch that it widens."""


@dataclass(frozen=True, slots=True)
class Scaled:
    """The run at one factor.

    Attributes
    ----------
    factor : of the device number
    value : the metric looked at; None where the run cannot be
    elasticity : gain for each unit of ln of the number from here to the next factor; None at the last
    metrics : latencies, throughput and cost
    time_share, limiter : where the time went, and what kept the batch from being larger [-]
    bound : verdict in a word
    stability : ``steady``, or why mean latencies say nothing
    error : why it cannot be
    """

    factor: float
    value: float | None
    elasticity: float | None
    metrics: Mapping[str, float | None]
    time_share: Mapping[str, float]
    limiter: Mapping[str, float]
    bound: str | None
    stability: str | None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Scaling:
    """One device number scaled on one load.

    Attributes
    ----------
    name : the scenario's
    number : of the device, as in a what-if (``hbm_bandwidth``)
    metric : what is looked at
    points : factor by factor
    stops_at : smallest factor from which more brings less than ``WORTH``; None: it still helps at the last but one
    takes_over : cause of time that is largest there beside those the number shortens
    limiter : what keeps the batch from being larger there
    answer : all that in a sentence
    requests, seed : of every run
    ran, found : runs done now, and runs that were kept from before
    """

    name: str
    number: str
    metric: str
    points: tuple[Scaled, ...]
    stops_at: float | None
    takes_over: str
    limiter: str
    answer: str
    requests: int
    seed: int
    ran: int
    found: int

    def to_dict(self) -> dict[str, Any]:
        """Return the curve as plain data; what it took is left out."""
        data = asdict(self)
        del data["ran"], data["found"]
        return data


def scaling(
    scenario: Scenario,
    number: str,
    *,
    factors: Sequence[float] = FACTORS,
    requests: int = REQUESTS,
    metric: str | None = None,
    folder: str | os.PathLike[str] | None = None,
    backend: str = "joblib",
    address: str | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> Scaling:
    """Scale a number of the device on the same requests, and say where that stops helping.

    Settings that are ``auto`` stay at what they come to on the device as it is.

    Parameters
    ----------
    scenario : the question, with a load
    number : of the datasheet (``hbm_bandwidth``, ``hbm_capacity``, ``peak_flops``, ``link.bandwidth``, …)
    factors : of that number, two or more
    requests, metric, folder, backend, address, jobs, progress : as in ``explain``

    Raises
    ------
    StudyError : factors that cannot be, a scenario that runs at none of them
    MemboundError : a number that no datasheet has
    """
    asked = sorted({float(each) for each in factors})
    if len(asked) < 2 or not 0 < asked[0] < math.inf:
        raise StudyError(f"factors {list(factors)}; allowed: two or more numbers above 0")
    pinned = resolve(with_requests(scenario, requests), "size")
    made = [_scaled(pinned.scenario, number, factor) for factor in asked]
    settings: list[dict[str, Any]] = [{number: f"x{factor:g}"} for factor in asked]
    result = sweep(
        Plan(scenario.name, tuple(settings), tuple(made), 1),
        kept_in(folder, CACHE),
        backend=backend,
        address=address,
        jobs=jobs,
        progress=progress,
    )
    known = [point for point in result.points if not point.error]
    if not known:
        raise StudyError(result.points[0].error)
    looked_at = metric_of(
        next((p for f, p in zip(asked, result.points, strict=True) if f == 1), known[0]), metric
    )
    points = _points(asked, result.points, looked_at)
    stops_at = _stop(points)
    at = next((each for each in points if each.factor == stops_at), points[-1])
    own, limits = _own(number, CAUSES_OF), _own(number, LIMITERS_OF)
    takes_over = _largest({k: v for k, v in at.time_share.items() if k not in (*own, "idle")})
    limiter = _largest(at.limiter)
    return Scaling(
        name=scenario.name,
        number=number,
        metric=looked_at,
        points=points,
        stops_at=stops_at,
        takes_over=takes_over,
        limiter=limiter,
        answer=_answer(number, points, stops_at, takes_over, limiter, limiter in limits),
        requests=int(known[0].metrics["requests.submitted"] or 0),
        seed=pinned.scenario.simulation.seed,
        ran=result.ran,
        found=result.found,
    )


def _scaled(scenario: Scenario, number: str, factor: float) -> Scenario:
    """Return a scenario on a device with one number scaled; a what-if device is scaled from where it is."""
    given = scenario.device
    base: dict[str, Any] = dict(given) if isinstance(given, dict) else {"base": given}
    if number in base:
        raise StudyError(
            f"{number} is overridden in the scenario's device already; scale the plain device instead"
        )
    changed = scenario.replace(device={**base, number: f"x{factor:g}"}) if factor != 1 else scenario
    try:
        resolve(changed, "size")
    except MemboundError as error:
        raise StudyError(str(error)) from None
    return changed


def _points(factors: Sequence[float], points: Sequence[Point], metric: str) -> tuple[Scaled, ...]:
    values = [None if point.error else point.metrics.get(metric) for point in points]
    gains: list[float | None] = [None] * len(values)
    for at, (here, there) in enumerate(pairwise(zip(factors, values, strict=True))):
        if here[1] and there[1]:
            slope = math.log(there[1] / here[1]) / math.log(there[0] / here[0])
            gains[at] = slope if (better(metric, 1.0) or 1.0) > 0 else -slope
    return tuple(
        Scaled(
            factor=factor,
            value=value,
            elasticity=gain,
            metrics={
                k: v for k, v in point.metrics.items() if k.startswith(("latency.", "throughput.", "cost."))
            },
            time_share=_part(point, "time_share."),
            limiter=_part(point, "limiter."),
            bound=point.summary["verdict"]["bound"],
            stability=point.summary["verdict"]["stability"],
            error=point.error,
        )
        for factor, point, value, gain in zip(factors, points, values, gains, strict=True)
    )


def _part(point: Point, section: str) -> dict[str, float]:
    return {k.removeprefix(section): v for k, v in point.metrics.items() if k.startswith(section) and v}


def _stop(points: Sequence[Scaled]) -> float | None:
    """Return the smallest factor from which no further step is worth it."""
    found: float | None = None
    for point in reversed(points[:-1]):
        if point.elasticity is None or point.elasticity >= WORTH:
            break
        found = point.factor
    return found


def _own(number: str, table: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    return table.get(number) or table.get(number.partition(".")[0]) or ()


def _largest(shares: Mapping[str, float]) -> str:
    return max(shares, key=lambda name: shares[name], default="")


def _answer(
    number: str, points: Sequence[Scaled], stops_at: float | None, takes_over: str, limiter: str, own: bool
) -> str:
    first, last = points[0], points[-1]
    if stops_at is None:
        slope = next((p.elasticity for p in reversed(points[:-1]) if p.elasticity is not None), None)
        gain = "" if slope is None else f" (10 % more still brings {10 * slope:.1f} %)"
        return f"{number} helps all the way to x{last.factor:g}{gain}; {_words(takes_over)} is next"
    what = f"time then goes to {_words(takes_over)}"
    if own:
        what += f"; a larger batch, which {_words(limiter)} would allow, brings no more"
    else:
        what += f", and the batch is limited by {_words(limiter)}"
    if stops_at == first.factor:
        return f"{number} helps nowhere from x{first.factor:g} to x{last.factor:g}: {what}"
    return f"{number} stops helping at x{stops_at:g}: {what}"


def _words(name: str) -> str:
    plain = {"latency": "fixed times in kernels"}.get(name, name)
    return plain.replace("hbm_", "HBM ").replace("kv", "KV").replace("_", " ")
