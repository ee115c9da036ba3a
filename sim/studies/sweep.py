"""Many runs of one scenario with some leaves varied: kept as they come, resumed where they stopped."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ...hwmodels.errors import CapacityError, MemboundError
from ...hwmodels.notebook import data_frame, html
from ..scenario.resolve import resolve
from .backends import run_tasks
from .paired import means, samples, spans
from .point import Point, digest, metrics_of, points_table
from .store import Run, Store
from .study import Plan, StudyError

if TYPE_CHECKING:
    from ..scenario.schema import Scenario

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Task:
    """One run to do: the hash it will be kept under, what the study set, and the scenario."""

    hash: str
    settings: Mapping[str, Any]
    scenario: Scenario


@dataclass(frozen=True, slots=True)
class SweepResult:
    """The points of a study.

    Attributes
    ----------
    name : the study's
    points : in the study's order; of a slice, its own
    ran, found : runs done now, and runs that were there before
    """

    name: str
    points: tuple[Point, ...]
    ran: int
    found: int

    def to_dict(self) -> dict[str, Any]:
        """Return the points as plain data (``sweep --format json``)."""
        return {"name": self.name, "points": [point.to_dict() for point in self.points]}

    def rows(self) -> list[dict[str, Any]]:
        """Return one row a point: settings, metrics by dotted name, intervals, level, hash, error."""
        return [
            {
                **point.settings,
                **point.metrics,
                **{f"{name}.low": span[0] for name, span in point.interval.items()},
                **{f"{name}.high": span[1] for name, span in point.interval.items()},
                "level": point.level,
                "bound": point.summary["verdict"]["bound"],
                "stability": point.summary["verdict"]["stability"],
                "hash": point.hash,
                "error": point.error or None,
            }
            for point in self.points
        ]

    def to_pandas(self) -> Any:
        """Return ``rows()`` as a ``pandas.DataFrame``."""
        return data_frame(self.rows())

    def _repr_html_(self) -> str:
        """Show every point's settings and main figures."""
        return html(self.name or "sweep", points_table(self.points))


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a sweep would do: its points, and the runs that are there and those that are not."""

    plan: Plan
    wanted: tuple[tuple[int, str], ...]
    tasks: tuple[Task, ...]

    @property
    def found(self) -> int:
        """Runs that are there already."""
        return len(self.wanted) - len(self.tasks)


def look_ahead(plan: Plan, store: Store, part: tuple[int, int] = (1, 1)) -> Outlook:
    """Return what a sweep would do.

    Parameters
    ----------
    plan : the study
    store : where its runs are kept
    part : (k, n): only the k-th of n slices of the points, each n-th point

    Raises
    ------
    StudyError : a slice that is not there
    MemboundError : a device, engine or model that cannot be read
    """
    number, count = part
    if not 1 <= number <= count:
        raise StudyError(f"slice {number}/{count}; allowed: 1/{count} to {count}/{count}")
    kept = store.hashes()
    wanted: list[tuple[int, str]] = []
    tasks: dict[str, Task] = {}
    for at, scenario in plan.runs():
        if at % count != number - 1:
            continue
        name = digest(resolve(scenario, "size"))
        wanted.append((at, name))
        if name not in kept:
            tasks.setdefault(name, Task(name, plan.settings[at], scenario))
    return Outlook(plan, tuple(wanted), tuple(tasks.values()))


def sweep(
    plan: Plan,
    folder: str | os.PathLike[str],
    *,
    part: tuple[int, int] = (1, 1),
    backend: str = "joblib",
    address: str | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> SweepResult:
    """Do every run of a study that is not kept yet, and return its points.

    Parameters
    ----------
    plan : the study; see ``load_study``
    folder : where runs are kept, one Parquet file each; DuckDB reads them with ``runs/*.parquet``
    part : (k, n): only the k-th of n slices of the points
    backend, address, jobs : where runs happen; see ``run_tasks``. They change no figure
    progress : called with the runs that are done, and all of them

    Raises
    ------
    StudyError : the folder cannot be written, the backend is not there
    MemboundError : a device, engine or model that cannot be read
    """
    store = Store(folder)
    outlook = look_ahead(plan, store, part)
    failed: dict[str, Run] = {}
    done = outlook.found
    if progress is not None:
        progress(done, len(outlook.wanted))
    if outlook.tasks:
        for at, run in run_tasks(one_run, outlook.tasks, backend=backend, address=address, jobs=jobs):
            if run.error and not run.answer:
                failed[outlook.tasks[at].hash] = run
            else:
                store.keep(run)
            done += 1
            if progress is not None:
                progress(done, len(outlook.wanted))
    points = _points(outlook, store, failed)
    result = SweepResult(plan.name, points, len(outlook.tasks), outlook.found)
    if part == (1, 1):
        store.keep_points(result.rows())
    return result


def one_run(task: Task) -> Run:
    """Do one run; a model that does not fit is an answer, any other fault is tried again next time."""
    from ..run import simulate

    blank = Run(task.hash, task.scenario.simulation.seed, task.settings, {})
    try:
        return run_of(task, simulate(task.scenario).summary())
    except CapacityError as error:
        return replace(blank, bound="memory capacity", answer=str(error), error=str(error))
    except MemboundError as error:
        return replace(blank, error=str(error))


def run_of(task: Task, summary: Mapping[str, Any]) -> Run:
    """Return what is kept of a run that has its summary."""
    verdict = summary["verdict"]
    return Run(
        task.hash,
        task.scenario.simulation.seed,
        task.settings,
        metrics=metrics_of(summary),
        level=summary["confidence"]["level"],
        bound=verdict["bound"],
        stability=verdict.get("stability"),
        answer=verdict["sentence"],
    )


def _points(outlook: Outlook, store: Store, failed: Mapping[str, Run]) -> tuple[Point, ...]:
    """Put the runs of each point together."""
    kept = store.load([name for _, name in dict.fromkeys(outlook.wanted) if name not in failed])
    runs: dict[int, list[Run]] = {}
    for at, name in outlook.wanted:
        runs.setdefault(at, []).append(failed.get(name) or kept[name])
    return tuple(_point(outlook.plan.settings[at], each) for at, each in sorted(runs.items()))


def _point(settings: Mapping[str, Any], runs: Sequence[Run]) -> Point:
    first = runs[0]
    error = next((run.error for run in runs if run.error), "")
    rows = [run.metrics for run in runs]
    return Point(
        label=", ".join(f"{key} {value}" for key, value in settings.items()),
        settings=settings,
        metrics={} if error else means(rows),
        interval=spans(samples(rows), "mean") if len(runs) > 1 and not error else {},
        level=first.level,
        hash=first.hash,
        summary={"verdict": {"bound": first.bound, "sentence": first.answer, "stability": _worst(runs)}},
        error=error,
    )


def _worst(runs: Sequence[Run]) -> str | None:
    """Return the stability of the runs, or of the first that is not steady."""
    return next((run.stability for run in runs if run.stability not in ("steady", None)), runs[0].stability)
