"""What to change first: every lever of a scenario moved on its own, on the same requests and random numbers."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from ...hwmodels.errors import MemboundError, unknown
from ..scenario.resolve import ResolvedScenario, resolve
from ..scenario.schema import Scenario
from .effects import Effect, Explained, Explanation, advice, better
from .fewer import with_requests
from .levers import Lever, Try, levers_of
from .paired import spans
from .store import kept_in
from .study import Plan, StudyError
from .sweep import sweep

if TYPE_CHECKING:
    from .point import Point, Span

Progress = Callable[[int, int], None]
REQUESTS = 300
CACHE = "explain"
"""What the user's cache keeps runs under that explain something, if nobody says where."""
PERCENT = 10.0
MAX_REPEAT = 1000
STEADY, OTHERWISE = "latency.e2e_s.mean", "throughput.output_tokens_per_s"
"""What is looked at: of a run in a steady state, and of one that is not, whose mean latencies say nothing."""
SHORT: Mapping[str, str] = {
    "ttft": "latency.ttft_s.mean",
    "tpot": "latency.tpot_s.mean",
    "itl": "latency.itl_s.mean",
    "e2e": "latency.e2e_s.mean",
    "throughput": "throughput.output_tokens_per_s",
    "goodput": "slo.goodput_per_s",
    "cost": "cost.usd_per_million_output_tokens",
}
"""Short names of metrics."""
SHOWN: tuple[str, ...] = (
    "latency.ttft_s.mean", "latency.ttft_s.p99", "latency.tpot_s.mean", "latency.e2e_s.mean",
    "throughput.output_tokens_per_s", "cost.usd_per_million_output_tokens",
)  # fmt: skip
"""Metrics whose change is kept of every try, beside the time shares and the one that is looked at."""


def explain(
    scenario: Scenario,
    *,
    percent: float = PERCENT,
    requests: int = REQUESTS,
    repeat: int = 1,
    metric: str | None = None,
    folder: str | os.PathLike[str] | None = None,
    backend: str = "joblib",
    address: str | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> Explanation:
    """Move every lever of a scenario on its own and say which one matters.

    Settings that are ``auto`` stay at what they come to in the scenario as it is.

    Parameters
    ----------
    scenario : the question, with a load
    percent : numbers are made so much less and more [%]
    requests : at most so many of its requests are served, in every run the same
    repeat : runs of each, the seed one higher each time: changes get intervals of pairs
    metric : what to look at, dotted name in ``summary.json`` or short (``tpot``); default: mean E2E latency, or
        output tokens a second where the base has no steady state
    folder : where runs are kept; default: the user's cache
    backend, address, jobs : where runs happen; see ``run_tasks``. They change no figure
    progress : called with the runs that are done, and all of them

    Raises
    ------
    StudyError : a percentage or metric that cannot be, no load, a folder that cannot be written
    MemboundError : a scenario that cannot run
    """
    if not 0 < percent < 100:
        raise StudyError(f"percent {percent:g}; allowed: above 0, below 100")
    if not 1 <= repeat <= MAX_REPEAT:
        raise StudyError(f"repeat {repeat}; allowed: 1 to {MAX_REPEAT:,}")
    pinned = resolve(with_requests(scenario, requests), "size")
    levers = levers_of(pinned, percent / 100)
    tried = {(at, n): each for at, lever in enumerate(levers) for n, each in enumerate(lever.tries)}
    work = {key: varied_by(pinned, each.settings) for key, each in tried.items()}
    runs = {key: made for key, made in work.items() if isinstance(made, ResolvedScenario)}
    plan = Plan(
        scenario.name,
        ({}, *(dict(tried[key].settings) for key in runs)) * repeat,
        tuple(_seeded(each.scenario, again) for again in range(repeat) for each in (pinned, *runs.values())),
        1,
    )
    result = sweep(
        plan, kept_in(folder, CACHE), backend=backend, address=address, jobs=jobs, progress=progress
    )
    many = 1 + len(runs)
    bases, *columns = (result.points[at::many] for at in range(many))
    base = bases[0]
    if base.error:
        raise StudyError(base.error)
    looked_at = metric_of(base, metric)
    found = dict(zip(runs, columns, strict=True))
    effects = {
        key: _effect(each, found[key], bases, looked_at, _notes(runs[key], pinned))
        if key in found
        else Effect(each.text, each.ratio, error=str(work[key]))
        for key, each in tried.items()
    }
    rows = [
        explained(lever, [effects[at, n] for n in range(len(lever.tries))], looked_at)
        for at, lever in enumerate(levers)
    ]
    ordered = tuple(sorted(rows, key=lambda each: -each.swing))
    asked, verdict = scenario.device, base.summary["verdict"]
    values = [point.metrics[looked_at] for point in bases]
    return Explanation(
        name=scenario.name,
        metric=looked_at,
        base=fmean(value for value in values if value is not None),
        levers=ordered,
        percent=percent,
        requests=int(base.metrics["requests.submitted"] or 0),
        seed=pinned.scenario.simulation.seed,
        repeat=repeat,
        level=base.level,
        device=pinned.device.id,
        model=pinned.model.id,
        whatif={k: v for k, v in asked.items() if k != "base"} if isinstance(asked, dict) else {},
        bound=verdict["bound"],
        sentence=verdict["sentence"],
        stability=verdict["stability"],
        advice=advice(ordered, looked_at, percent),
        ran=result.ran,
        found=result.found,
    )


def varied_by(base: ResolvedScenario, settings: Mapping[str, Any]) -> ResolvedScenario | MemboundError:
    """Return a resolved scenario with some leaves set, its load left alone, or why it cannot be."""
    try:
        changes = {key.replace(".", "__"): value for key, value in settings.items()}
        return resolve(base.scenario.replace(**changes), "size")
    except MemboundError as error:
        return error


def _notes(run: ResolvedScenario, base: ResolvedScenario) -> tuple[str, ...]:
    """Return what is said of a run and not of the base."""
    return tuple(note for note in run.warnings if note not in base.warnings)


def metric_of(base: Point, asked: str | None) -> str:
    """Return the dotted name of what is looked at."""
    if asked is None:
        return STEADY if base.summary["verdict"]["stability"] == "steady" else OTHERWISE
    name = SHORT.get(asked, asked)
    numbers = [key for key, value in base.metrics.items() if value]
    if name not in numbers:
        if base.metrics.get(name, None) == 0:
            raise StudyError(f"metric {asked!r} is 0 in the base, so nothing is a share of it")
        raise StudyError(unknown("metric", asked, [*SHORT, *numbers]))
    return name


def _effect(
    tried: Try, points: Sequence[Point], bases: Sequence[Point], metric: str, notes: tuple[str, ...]
) -> Effect:
    """Return what a try does, seed by seed against the base of that seed."""
    point = points[0]
    error = next((each.error for each in points if each.error), "")
    if error:
        return Effect(tried.text, tried.ratio, error=error, hash=point.hash)
    changes = {
        name: found
        for name in dict.fromkeys((*SHOWN, metric))
        if len(found := list(_changes(bases, points, name))) == len(points)
    }
    values = [each.metrics.get(metric) for each in points]
    known = [value for value in values if value is not None]
    causes = [name for name in point.metrics if name.startswith("time_share.")]
    moved = {
        name: fmean(
            (b.metrics.get(name) or 0.0) - (a.metrics.get(name) or 0.0) for a, b in _pairs(bases, points)
        )
        for name in causes
    }
    own = changes.get(metric)
    return Effect(
        text=tried.text,
        ratio=tried.ratio,
        value=fmean(known) if len(known) == len(values) else None,
        change=fmean(own) if own else None,
        interval=spans({metric: own}, "mean")[metric] if own and len(own) > 1 else None,
        changes={name: fmean(each) for name, each in changes.items()},
        time_share={name.removeprefix("time_share."): share for name, share in moved.items()},
        stability=point.summary["verdict"]["stability"],
        notes=notes,
        hash=point.hash,
    )


def _pairs(bases: Sequence[Point], points: Sequence[Point]) -> Iterator[tuple[Point, Point]]:
    """Yield each run with the base of its seed."""
    return zip(bases, points, strict=True)


def _changes(bases: Sequence[Point], points: Sequence[Point], name: str) -> Iterator[float]:
    for base, point in _pairs(bases, points):
        before, after = base.metrics.get(name), point.metrics.get(name)
        if before and after is not None:
            yield after / before - 1


def _seeded(scenario: Scenario, again: int) -> Scenario:
    """Return a scenario with its seed so many higher."""
    if not again:
        return scenario
    simulation = scenario.simulation
    seeded = simulation.model_copy(update={"seed": simulation.seed + again})
    return scenario.model_copy(update={"simulation": seeded})


def explained(lever: Lever, effects: Sequence[Effect], metric: str) -> Explained:
    """Return a lever with the effects of its values, summed up for one metric."""
    known = [(each, each.change) for each in effects if each.change is not None]
    sure = [(each, change) for each, change in known if not _crosses(each.interval)]
    gains = [(better(metric, change), each) for each, change in sure]
    best = max(((gain, each.text) for gain, each in gains if gain is not None), default=None)
    undefined = better(metric, 0.0) is None
    return Explained(
        leaf=lever.leaf,
        group=lever.group,
        value=lever.value,
        effects=tuple(effects),
        elasticity=_elasticity(effects),
        swing=max((abs(change) for _, change in known), default=0.0),
        gain=None if undefined else max(best[0], 0.0) if best else 0.0,
        best=best[1] if best and best[0] > 0 else "",
    )


def _crosses(interval: Span | None) -> bool:
    """Tell whether an interval holds both less and more."""
    return interval is not None and interval[0] < 0 < interval[1]


def _elasticity(effects: Sequence[Effect]) -> float | None:
    """Return the slope of log metric over log lever, between the ends that ran and the base."""
    ends = [(1.0, 1.0)]
    ends += [(e.ratio, e.change + 1) for e in effects if e.ratio and e.change is not None and e.change > -1]
    (low, below), (high, above) = min(ends), max(ends)
    return math.log(above / below) / math.log(high / low) if high > low else None
