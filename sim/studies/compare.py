"""Scenarios side by side, on the same requests and the same random numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from ...hwmodels.errors import CapacityError
from ...hwmodels.notebook import data_frame, html
from ..scenario.resolve import ResolvedScenario, resolve
from ..scenario.schema import Scenario
from .backends import run_tasks
from .paired import changes, means, samples, spans
from .point import Point, digest, metrics_of, points_table, settings_between
from .study import StudyError

if TYPE_CHECKING:
    from .paired import Of, Samples

Progress = Callable[[int, int], None]
MAX_REPEAT = 10_000


class Job(NamedTuple):
    """One run: which scenario, and the draw or the repetition."""

    at: int
    resolved: ResolvedScenario
    draw: int | None
    again: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """Scenarios side by side; the first is what the others are compared with.

    Attributes
    ----------
    points : one for each scenario, in the order given
    repeat : runs of each scenario, with seeds of their own
    draws : draws of what is not known of the hardware; 0: none
    """

    points: tuple[Point, ...]
    repeat: int = 1
    draws: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as plain data (``compare --format json``)."""
        return {
            "repeat": self.repeat,
            "draws": self.draws,
            "points": [point.to_dict() for point in self.points],
        }

    def rows(self) -> list[dict[str, Any]]:
        """Return one row a scenario: its label, settings, metrics by dotted name and their change."""
        return [
            {
                "label": point.label,
                **point.settings,
                **point.metrics,
                **{f"{name}.change": change for name, change in point.change.items()},
                "level": point.level,
                "error": point.error or None,
            }
            for point in self.points
        ]

    def to_pandas(self) -> Any:
        """Return ``rows()`` as a ``pandas.DataFrame``."""
        return data_frame(self.rows())

    def _repr_html_(self) -> str:
        """Show the scenarios' main figures side by side."""
        return html("comparison", points_table(self.points))


def compare(
    scenarios: Sequence[Scenario] | Mapping[str, Scenario],
    *,
    repeat: int = 1,
    draws: int = 0,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Run scenarios on the same random numbers and put their figures side by side.

    Parameters
    ----------
    scenarios : what to compare, the first with the others; as a mapping, by label
    repeat : runs of each, the seed one higher each time: figures become means over the runs, with intervals of
        the mean, and changes have intervals of pairs
    draws : instead, draws of what is not known of the hardware; every scenario meets the same draws
    jobs : processes; default: one for each core. The figures do not depend on it
    progress : called after every run with how many are done, and all of them

    A scenario whose model does not fit its device is a point with an ``error``; the others are run.

    Raises
    ------
    StudyError : no scenario, or numbers of runs that cannot be
    MemboundError : a scenario that cannot be resolved or run for another reason
    """
    labels, asked = _labelled(scenarios)
    _check(len(asked), repeat, draws)
    resolved = [resolve(scenario) for scenario in asked]
    work = [Job(at, each, None, again) for again in range(repeat) for at, each in enumerate(resolved)]
    work += [Job(at, each, draw, 0) for draw in range(draws) for at, each in enumerate(resolved)]
    results: dict[int, dict[str, Any] | str] = {}
    for done, (position, found) in enumerate(run_tasks(_one, work, jobs=jobs), 1):
        results[position] = found
        if progress is not None:
            progress(done, len(work))
    summaries: list[list[dict[str, Any]]] = [[] for _ in asked]
    rows: list[list[Mapping[str, float | None]]] = [[] for _ in asked]
    errors: dict[int, str] = {}
    for position, job in enumerate(work):
        found = results[position]
        if isinstance(found, str):
            errors[job.at] = found
        elif job.draw is None:
            summaries[job.at].append(found)
        else:
            rows[job.at].append(found)
    points: list[Point] = []
    base: Samples = {}
    for at, label in enumerate(labels):
        values = samples(rows[at] if draws else [metrics_of(each) for each in summaries[at]])
        if not at:
            base = values
        points.append(
            Point(
                label=label,
                settings=settings_between(asked[0], asked[at]) if at else {},
                metrics={} if at in errors else means([metrics_of(each) for each in summaries[at]]),
                level=None if at in errors else summaries[at][0]["confidence"]["level"],
                hash=digest(resolved[at], repeat, draws),
                summary={} if at in errors else summaries[at][0],
                error=errors.get(at, ""),
            )
        )
        if at not in errors:
            points[at] = _with_spans(points[at], points[0], base, values, "spread" if draws else "mean")
    return Comparison(tuple(points), repeat, draws)


def _labelled(scenarios: Sequence[Scenario] | Mapping[str, Scenario]) -> tuple[list[str], list[Scenario]]:
    if isinstance(scenarios, Mapping):
        return list(scenarios), list(scenarios.values())
    return [each.name or f"scenario {at}" for at, each in enumerate(scenarios, 1)], list(scenarios)


def _check(count: int, repeat: int, draws: int) -> None:
    if not count:
        raise StudyError("no scenario to compare; give two or more")
    if not 1 <= repeat <= MAX_REPEAT:
        raise StudyError(f"repeat {repeat}; allowed: 1 to {MAX_REPEAT:,}")
    if draws and repeat > 1:
        raise StudyError("repeat and draws answer different questions (load; hardware); give one of them")
    if draws:
        from ..draws import check_draws

        check_draws(draws)


def _one(job: Job) -> dict[str, Any] | str:
    """Run one scenario once; return its summary, the figures of a draw, or why it does not fit."""
    from ..draws import one_draw
    from ..run import simulate

    try:
        if job.draw is not None:
            return dict(one_draw(job.resolved, job.draw))
        return simulate(_again(job.resolved, job.again)).summary()
    except CapacityError as error:
        return str(error)


def _again(resolved: ResolvedScenario, again: int) -> ResolvedScenario:
    """Return the scenario with its seed so many higher."""
    if not again:
        return resolved
    simulation = resolved.scenario.simulation
    seeded = simulation.model_copy(update={"seed": simulation.seed + again})
    return resolve(resolved.scenario.model_copy(update={"simulation": seeded}))


def _with_spans(point: Point, base: Point, before: Samples, values: Samples, of: Of) -> Point:
    """Return a point with its intervals, and its changes against the base of the study."""
    several = len(next(iter(values.values()), ())) > 1
    moved = changes(before, values) if point is not base and before else {}
    if of == "spread":
        plain = [{k: [v] for k, v in each.metrics.items() if v is not None} for each in (base, point)]
        centre = {name: each[0] for name, each in changes(*plain).items()} if moved else {}
    else:
        centre = {name: fmean(each) for name, each in moved.items()}
    return replace(
        point,
        interval=spans(values, of) if several else {},
        change=centre,
        change_interval=spans(moved, of) if several else {},
    )
