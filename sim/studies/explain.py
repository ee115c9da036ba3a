"""What to change first: every lever of a scenario moved on its own, on the same requests and random numbers."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...hwmodels.errors import MemboundError, unknown
from ..scenario.resolve import ResolvedScenario, resolve
from ..scenario.schema import Scenario
from .fewer import with_requests
from .levers import Group, Lever, Try, levers_of
from .study import Plan, StudyError
from .sweep import sweep

if TYPE_CHECKING:
    from .point import Point

Progress = Callable[[int, int], None]
REQUESTS = 300
PERCENT = 10.0
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
SMALLER_IS_BETTER = ("latency.", "cost.", "energy.", "requests.rejected", "requests.preemptions", "kv.waste")
LARGER_IS_BETTER = ("throughput.", "slo.", "requests.completed")
FREE: tuple[Group, ...] = ("setting", "precision")
"""Groups of levers that cost nothing to move."""
SMALL = 0.01
"""A lever that moves the metric by less than this share is not worth a sentence."""


@dataclass(frozen=True, slots=True)
class Effect:
    """What one changed value of a lever does.

    Attributes
    ----------
    text : the value, as shown
    ratio : new value over old; None where the lever is no number
    value : the metric looked at; None where it is not known
    change : its share of change against the base; None where it is not known
    changes : the same of other metrics, by dotted name
    time_share : cause -> change of its share of the time [-]
    stability : ``steady``, or why mean latencies say nothing
    notes : what is said of this run and not of the base
    error : why it cannot be; empty where it can
    hash : of everything the figures depend on
    """

    text: str
    ratio: float | None
    value: float | None = None
    change: float | None = None
    changes: Mapping[str, float] | None = None
    time_share: Mapping[str, float] | None = None
    stability: str | None = None
    notes: tuple[str, ...] = ()
    error: str = ""
    hash: str = ""


@dataclass(frozen=True, slots=True)
class Explained:
    """One lever and what moving it does.

    Attributes
    ----------
    leaf : dotted name
    group : ``device``, ``setting``, ``precision`` or ``gpus``; see ``Lever``
    value : what it is
    effects : less and more of it; of what is no number, its other values
    elasticity : share by which the metric changes for each share that the lever grows by; None if it is no number
    swing : the largest change of the metric that it brings, either way [-]
    gain : the largest change for the better [-]; 0 where there is none, None where better is not defined
    best : the value that brings it
    """

    leaf: str
    group: Group
    value: Any
    effects: tuple[Effect, ...]
    elasticity: float | None
    swing: float
    gain: float | None
    best: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """The levers of a scenario, the one with the largest swing first.

    Attributes
    ----------
    name : the scenario's
    metric : what is looked at, dotted name in ``summary.json``
    base : its value with nothing changed
    levers : by swing; those that change nothing last
    percent : by how much numbers were made less and more
    requests : served in every run, the same
    seed : of all runs
    level : how well the least known kernel of the base is known
    device, model, whatif : ids, and datasheet values of the base that were overridden
    bound, sentence, stability : verdict of the base
    advice : what to change first
    ran, found : runs done now, and runs that were kept from before
    """

    name: str
    metric: str
    base: float
    levers: tuple[Explained, ...]
    percent: float
    requests: int
    seed: int
    level: str | None
    device: str
    model: str
    whatif: Mapping[str, Any]
    bound: str
    sentence: str
    stability: str | None
    advice: str
    ran: int
    found: int

    def to_dict(self) -> dict[str, Any]:
        """Return the explanation as plain data (``explain --format json``); what it took is left out."""
        data = asdict(self)
        del data["ran"], data["found"]
        return data


def explain(
    scenario: Scenario,
    *,
    percent: float = PERCENT,
    requests: int = REQUESTS,
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
    pinned = resolve(with_requests(scenario, requests), "size")
    levers = levers_of(pinned, percent / 100)
    tried = {(at, n): each for at, lever in enumerate(levers) for n, each in enumerate(lever.tries)}
    work = {key: varied_by(pinned, each.settings) for key, each in tried.items()}
    runs = {key: made for key, made in work.items() if isinstance(made, ResolvedScenario)}
    plan = Plan(
        scenario.name,
        ({}, *(dict(tried[key].settings) for key in runs)),
        (pinned.scenario, *(run.scenario for run in runs.values())),
        1,
    )
    kept = default_folder() if folder is None else Path(folder)
    result = sweep(plan, kept, backend=backend, address=address, jobs=jobs, progress=progress)
    base, *points = result.points
    if base.error:
        raise StudyError(base.error)
    looked_at = metric_of(base, metric)
    found = dict(zip(runs, points, strict=True))
    effects = {
        key: _effect(each, found[key], base, looked_at, _notes(runs[key], pinned))
        if key in found
        else Effect(each.text, each.ratio, error=str(work[key]))
        for key, each in tried.items()
    }
    explained = [
        _explained(lever, [effects[at, n] for n in range(len(lever.tries))], looked_at)
        for at, lever in enumerate(levers)
    ]
    ordered = tuple(sorted(explained, key=lambda each: -each.swing))
    asked, verdict = scenario.device, base.summary["verdict"]
    value = base.metrics[looked_at]
    assert value is not None
    return Explanation(
        name=scenario.name,
        metric=looked_at,
        base=value,
        levers=ordered,
        percent=percent,
        requests=int(base.metrics["requests.submitted"] or 0),
        seed=pinned.scenario.simulation.seed,
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


def default_folder() -> Path:
    """Return where runs are kept if nobody says where: the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "membound" / "explain"


def better(metric: str, change: float) -> float | None:
    """Return a change as a gain: above 0 is better; None where better is not defined.

    >>> better("latency.tpot_s.mean", -0.2), better("throughput.requests_per_s", 0.1)
    (0.2, 0.1)
    """
    if metric.startswith(SMALLER_IS_BETTER):
        return -change
    return change if metric.startswith(LARGER_IS_BETTER) else None


def metric_word(metric: str) -> str:
    """Return a metric's name for people.

    >>> metric_word("latency.e2e_s.mean"), metric_word("latency.ttft_s.p99")
    ('E2E', 'TTFT p99')
    """
    section, _, name = metric.partition(".")
    if section != "latency":
        return name.replace("_", " ")
    short, _, which = name.partition("_s.")
    word = short.upper() if short != "queue" else short
    return word if which == "mean" else f"{word} {which}"


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


def _effect(tried: Try, point: Point, base: Point, metric: str, notes: tuple[str, ...]) -> Effect:
    if point.error:
        return Effect(tried.text, tried.ratio, error=point.error, hash=point.hash)
    changes = dict(_changes(base, point, dict.fromkeys((*SHOWN, metric))))
    shares = {
        name.removeprefix("time_share."): (value or 0.0) - (base.metrics.get(name) or 0.0)
        for name, value in point.metrics.items()
        if name.startswith("time_share.")
    }
    return Effect(
        text=tried.text,
        ratio=tried.ratio,
        value=point.metrics.get(metric),
        change=changes.get(metric),
        changes=changes,
        time_share=shares,
        stability=point.summary["verdict"]["stability"],
        notes=notes,
        hash=point.hash,
    )


def _changes(base: Point, point: Point, metrics: Mapping[str, object]) -> Iterator[tuple[str, float]]:
    for name in metrics:
        before, after = base.metrics.get(name), point.metrics.get(name)
        if before and after is not None:
            yield name, after / before - 1


def _explained(lever: Lever, effects: Sequence[Effect], metric: str) -> Explained:
    known = [(each, each.change) for each in effects if each.change is not None]
    gains = [(better(metric, change), each) for each, change in known]
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


def _elasticity(effects: Sequence[Effect]) -> float | None:
    """Return the slope of log metric over log lever, between the ends that ran and the base."""
    ends = [(1.0, 1.0)]
    ends += [(e.ratio, e.change + 1) for e in effects if e.ratio and e.change is not None and e.change > -1]
    (low, below), (high, above) = min(ends), max(ends)
    return math.log(above / below) / math.log(high / low) if high > low else None


def advice(levers: Sequence[Explained], metric: str, percent: float) -> str:
    """Return the sentence that says what to change first.

    Settings and number formats come first, since they cost nothing; then the device's numbers, for whoever chooses the
    next one.
    """
    if better(metric, 0.0) is None:
        first = levers[0]
        return f"{first.leaf} moves {metric_word(metric)} most, by {100 * first.swing:.1f} %"
    free, device, gpus = (
        next((each for each in _by_gain(levers, groups) if _gain(each) >= SMALL), None)
        for groups in (FREE, ("device",), ("gpus",))
    )
    said: list[str] = []
    if free:
        quality = " (its effect on answers is not simulated)" if free.group == "precision" else ""
        said.append(f"change {free.leaf} to {free.best} first: {_outcome(free, metric)}{quality}")
    else:
        said.append(f"no setting and no number format is worth {100 * SMALL:.0f} %")
    if device:
        others = [e for e in _by_gain(levers, ("device",)) if e is not device and _gain(e) >= SMALL]
        then = ", ".join(f"{_plain(e.leaf)} {100 * _gain(e):.1f} %" for e in others[:2])
        said.append(
            f"of the device's numbers {_plain(device.leaf)} {device.best} brings most: {_outcome(device, metric)}"
            + (f" ({then} next)" if then else "")
        )
    else:
        said.append(f"{percent:g} % of no device number is worth {100 * SMALL:.0f} %")
    if gpus:
        said.append(f"with other numbers of GPUs, {gpus.leaf} {gpus.best}: {_outcome(gpus, metric)}")
    return "; ".join(said)


def _by_gain(levers: Sequence[Explained], groups: Sequence[str]) -> list[Explained]:
    return sorted((each for each in levers if each.group in groups), key=_gain, reverse=True)


def _gain(lever: Explained) -> float:
    return lever.gain or 0.0


def _plain(leaf: str) -> str:
    return leaf.removeprefix("device.")


def _outcome(lever: Explained, metric: str) -> str:
    sign = "-" if metric.startswith(SMALLER_IS_BETTER) else "+"
    return f"{metric_word(metric)} {sign}{100 * _gain(lever):.1f} %"
