"""From a baseline to a candidate, one difference after the other: what each brings, on the same requests."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, cast

from ...hwmodels.errors import MemboundError
from ..scenario.resolve import resolve
from ..scenario.schema import Scenario, leaf
from .effects import better, metric_word
from .explain import CACHE, REQUESTS, metric_of
from .fewer import with_requests
from .point import settings_between
from .store import kept_in
from .study import Plan, StudyError
from .sweep import sweep

if TYPE_CHECKING:
    from .point import Point

Progress = Callable[[int, int], None]
WHOLE: tuple[str, ...] = (
    "device", "speculative", "slo", "workload.arrivals", "workload.input_tokens", "workload.output_tokens",
    "workload.trace", "workload.sessions", "workload.expert_routing", "kv_cache.eviction", "kv_cache.tiers",
)  # fmt: skip
"""Sections that change as one: their leaves make no sense without each other."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One step of the waterfall.

    Attributes
    ----------
    settings : leaves that it sets, the candidate's values; several where one alone cannot be
    value : the metric with this and all differences before it
    change : its share of change against the step before
    alone : its share of change against the baseline with nothing else changed; None where that cannot be
    time_share : cause -> change of its share of the time against the step before [-]
    stability : ``steady``, or why mean latencies say nothing
    """

    settings: Mapping[str, Any]
    value: float
    change: float
    alone: float | None
    time_share: Mapping[str, float]
    stability: str | None


@dataclass(frozen=True, slots=True)
class Waterfall:
    """What lies between a baseline and a candidate.

    Attributes
    ----------
    base_name, candidate_name : of the scenarios
    metric : what is looked at, dotted name in ``summary.json``
    base, candidate : its value in both
    steps : the differences, in the order in which a scenario lists its settings
    requests, seed : of every run
    levels : how well the least known kernel of baseline and candidate is known
    advice : which difference to take first
    ran, found : runs done now, and runs that were kept from before
    """

    base_name: str
    candidate_name: str
    metric: str
    base: float
    candidate: float
    steps: tuple[Difference, ...]
    requests: int
    seed: int
    levels: tuple[str | None, str | None]
    advice: str
    ran: int
    found: int

    def to_dict(self) -> dict[str, Any]:
        """Return the waterfall as plain data (``explain --format json``); what it took is left out."""
        data = asdict(self)
        del data["ran"], data["found"]
        return data


def waterfall(
    baseline: Scenario,
    candidate: Scenario,
    *,
    requests: int = REQUESTS,
    metric: str | None = None,
    folder: str | os.PathLike[str] | None = None,
    backend: str = "joblib",
    address: str | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> Waterfall:
    """Apply what a candidate has otherwise to a baseline, one setting after the other.

    The order is that of a scenario's settings; another order shares out otherwise what settings do only together, which
    is why each is also run alone.

    Parameters
    ----------
    baseline, candidate : two scenarios with a load
    requests, metric, folder, backend, address, jobs, progress : as in ``explain``

    Raises
    ------
    StudyError : nothing differs, a metric that cannot be, a folder that cannot be written
    MemboundError : a scenario that cannot run
    """
    start, end = with_requests(baseline, requests), with_requests(candidate, requests)
    for each in (start, end):
        resolve(each, "size")
    ways = _steps(start, end)
    if not ways:
        raise StudyError("the two scenarios have the same settings; nothing to explain")
    settings, path = zip(*ways, strict=True)
    alone = [made if (made := _merged(start, each)) else start for each in settings]
    scenarios = (start, *path, *alone)
    result = sweep(
        Plan(baseline.name, ({}, *settings, *settings), scenarios, 1),
        kept_in(folder, CACHE),
        backend=backend,
        address=address,
        jobs=jobs,
        progress=progress,
    )
    base, *rest = result.points
    along, single = rest[: len(path)], rest[len(path) :]
    error = next((point.error for point in (base, along[-1]) if point.error), "")
    if error:
        raise StudyError(error)
    looked_at = metric_of(base, metric)
    steps = _differences(settings, base, along, single, looked_at, [s is not start for s in alone])
    last = steps[-1].value
    first = base.metrics[looked_at]
    assert first is not None
    return Waterfall(
        base_name=baseline.name,
        candidate_name=candidate.name,
        metric=looked_at,
        base=first,
        candidate=last,
        steps=tuple(steps),
        requests=int(base.metrics["requests.submitted"] or 0),
        seed=start.simulation.seed,
        levels=(base.level, along[-1].level),
        advice=_advice(steps, looked_at),
        ran=result.ran,
        found=result.found,
    )


def _steps(start: Scenario, end: Scenario) -> list[tuple[dict[str, Any], Scenario]]:
    """Return what differs, setting by setting, and the scenario up to and with each.

    What cannot be without the next difference is taken together with it.
    """
    found: list[tuple[dict[str, Any], Scenario]] = []
    current, pending = start, dict[str, Any]()
    groups = _differing(start, end)
    for number, name in enumerate(groups, 1):
        pending[name] = leaf(end.to_dict(), name)
        made = end if number == len(groups) else _merged(current, pending)
        if made is not None:
            found.append((pending, made))
            current, pending = made, {}
    return found


def _differing(start: Scenario, end: Scenario) -> list[str]:
    """Return leaves and whole sections that differ, in the order of a scenario's settings."""
    order = {name: at for at, name in enumerate(Scenario.model_fields)}
    names = dict.fromkeys(
        next((whole for whole in WHOLE if key == whole or key.startswith(f"{whole}.")), key)
        for key in settings_between(start, end)
    )
    return sorted(names, key=lambda name: order[name.partition(".")[0]])


def _merged(scenario: Scenario, settings: Mapping[str, Any]) -> Scenario | None:
    """Return a scenario with some leaves set; None where that cannot be."""
    try:
        changed = scenario.replace(**{key.replace(".", "__"): value for key, value in settings.items()})
        resolve(changed, "size")
    except MemboundError:
        return None
    return changed


def _differences(
    settings: Sequence[Mapping[str, Any]],
    base: Point,
    along: Sequence[Point],
    single: Sequence[Point],
    metric: str,
    possible: Sequence[bool],
) -> list[Difference]:
    found: list[Difference] = []
    before, waiting = base, dict[str, Any]()
    for given, point, alone, can in zip(settings, along, single, possible, strict=True):
        value, last = point.metrics.get(metric), before.metrics.get(metric)
        if value is None or not last:
            waiting |= given  # it could not run: its part falls to the next one
            continue
        own = alone.metrics.get(metric) if can and not waiting else None
        start = base.metrics.get(metric)
        shares = {
            name.removeprefix("time_share."): (share or 0.0) - (before.metrics.get(name) or 0.0)
            for name, share in point.metrics.items()
            if name.startswith("time_share.")
        }
        found.append(
            Difference(
                settings={**waiting, **given},
                value=value,
                change=value / last - 1,
                alone=own / start - 1 if own is not None and start else None,
                time_share=shares,
                stability=point.summary["verdict"]["stability"],
            )
        )
        before, waiting = point, {}
    if waiting or not found:
        raise StudyError(f"the candidate's {metric} is not known")
    return found


def _advice(steps: Sequence[Difference], metric: str) -> str:
    """Say which difference brings most, and which makes it worse."""
    gains = [(better(metric, step.change if step.alone is None else step.alone), step) for step in steps]
    known = [(gain, step) for gain, step in gains if gain is not None]
    if not known:
        step = max(steps, key=lambda each: abs(each.change))
        return f"{named(step.settings)} moves {metric_word(metric)} most, by {100 * step.change:+.1f} %"
    best, step = max(known, key=lambda each: each[0])
    if best <= 0:
        return f"no difference makes {metric_word(metric)} better"
    sign = 1 if (better(metric, 1.0) or 0.0) > 0 else -1
    said = f"change {named(step.settings)} first: alone it brings {metric_word(metric)} {100 * sign * best:+.1f} %"
    worst, bad = min(known, key=lambda each: each[0])
    if worst < 0:
        said += f"; leave {named(bad.settings)} as it was: alone it brings {100 * sign * worst:+.1f} %"
    return said


def named(settings: Mapping[str, Any]) -> str:
    """Return settings as text.

    >>> named({"scheduler.max_num_seqs": 64, "quantization.weights": "fp8"})
    'scheduler.max_num_seqs 64, quantization.weights fp8'
    """
    return ", ".join(f"{key} {_short(value)}" for key, value in settings.items())


def _short(value: object) -> str:
    if isinstance(value, Mapping):
        inner = cast("Mapping[str, Any]", value)
        value = ", ".join(f"{key} {each}" for key, each in inner.items() if each is not None)
    text = "none" if value is None else str(value)
    return text if len(text) <= 60 else text[:57] + "..."
