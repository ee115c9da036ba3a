"""The runs that pages show: each done once, kept by the hash of all it depends on, and given to the sweep store.

Nothing here knows Streamlit.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from ...sim.output.result import SimulationResult
from ...sim.run import simulate
from ...sim.scenario.resolve import ResolvedScenario, resolve
from ...sim.scenario.schema import Scenario
from ...sim.studies.compare import Comparison, compare
from ...sim.studies.paired import changes, samples
from ...sim.studies.point import Point, digest, metrics_of, settings_between
from ...sim.studies.store import Store, kept_in
from ...sim.studies.study import StudyError
from ...sim.studies.sweep import Task, run_of
from .jobs import Kept, Progress

STORE_VARIABLE = "MEMBOUND_DASHBOARD_STORE"
HELD_RUNS = 12
"""Whole runs kept in memory; each takes up to a few hundred bytes a step."""
HELD_STUDIES = 64
WAIT_S = 0.1
"""How often who waits for another's run looks whether it is still wanted [s]."""
SHORT = 100
"""Requests of runs that take no longer than starting a process."""
DRAWS = 19
"""Fewest draws of which the extremes hold 90 % of what could be."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A finished run.

    Attributes
    ----------
    scenario : what was asked
    resolved : the same with everything it names
    hash : of everything its figures depend on; also its name in the sweep store
    result : the run with its steps
    summary : its figures under the keys of ``summary.json``
    """

    scenario: Scenario
    resolved: ResolvedScenario
    hash: str
    result: SimulationResult
    summary: Mapping[str, Any]


_runs: Kept[Answer] = Kept(HELD_RUNS)
_studies: Kept[Any] = Kept(HELD_STUDIES)
_making: dict[str, threading.Lock] = {}
_making_lock = threading.Lock()


def store_folder() -> Path:
    """Return where runs are kept between sessions: the folder of ``membound dashboard --store``."""
    return kept_in(os.environ.get(STORE_VARIABLE), "dashboard")


def known(scenario: Scenario) -> Answer | None:
    """Return a run that is kept already."""
    return _runs.get(hash_of(scenario))


def answer(scenario: Scenario, progress: Progress | None = None) -> Answer:
    """Run a scenario, or return the run that is kept.

    Raises
    ------
    MemboundError : as ``simulate``
    """
    name = hash_of(scenario)
    with _alone(name, progress):
        return _runs.get(name) or _made(scenario, name, progress)


def _made(scenario: Scenario, name: str, progress: Progress | None) -> Answer:
    resolved = resolve(scenario)
    result = simulate(resolved, keep_steps=True, progress=progress)
    made = Answer(scenario, resolved, name, result, result.summary())
    _give_to_store(made)
    return _runs.keep(name, made)


@contextmanager
def _alone(name: str, progress: Progress | None) -> Iterator[None]:
    """Let nobody else make the same run meanwhile; who waits can be stopped."""
    with _making_lock:
        lock = _making.setdefault(name, threading.Lock())
    while not lock.acquire(timeout=WAIT_S):
        if progress is not None:
            progress(0, 0)
    try:
        yield
    finally:
        lock.release()
        _making.pop(name, None)


def hash_of(scenario: Scenario) -> str:
    """Return the name under which sweeps keep the run of a scenario."""
    return _hash(scenario.model_dump_json(), scenario)


@lru_cache(maxsize=256)
def _hash_of_text(text: str) -> str:
    return digest(resolve(Scenario.model_validate_json(text), "size"))


def _hash(text: str, scenario: Scenario) -> str:
    trace = scenario.workload is not None and scenario.workload.trace is not None
    return digest(resolve(scenario, "size")) if trace else _hash_of_text(text)


def _give_to_store(made: Answer) -> None:
    store = Store(store_folder())
    try:
        if made.hash not in store.hashes():
            store.keep(run_of(Task(made.hash, {}, made.scenario), made.summary))
    except StudyError:
        return  # a folder that cannot be written costs a second run later, and nothing now


def comparison(a: Scenario, b: Scenario, draws: int, progress: Progress | None = None) -> Comparison:
    """Return two scenarios side by side with what is not known of the hardware drawn, or the one that is kept."""
    return study(
        ("compare", hash_of(a), hash_of(b), draws),
        lambda: compare({"A": a, "B": b}, draws=draws, jobs=jobs_for(a), progress=progress),
    )


def beside(a: Answer, b: Answer) -> Comparison:
    """Return two finished runs side by side, without intervals."""
    points = [
        Point(
            label=label,
            settings=settings_between(a.scenario, each.scenario),
            metrics=metrics_of(each.summary),
            level=each.summary["confidence"]["level"],
            hash=each.hash,
            summary=each.summary,
        )
        for label, each in (("A", a), ("B", b))
    ]
    moved = changes(samples([points[0].metrics]), samples([points[1].metrics]))
    return Comparison((points[0], replace(points[1], change={name: each[0] for name, each in moved.items()})))


def jobs_for(scenario: Scenario) -> int | None:
    """Return in how many processes runs of a scenario happen: here where they are short, else one for each core."""
    requests = scenario.workload.requests if scenario.workload else None
    return 1 if requests is not None and requests <= SHORT else None


def known_study(key: tuple[Any, ...]) -> Any:
    """Return a study that is kept already, or None."""
    return _studies.get(key)


def study(key: tuple[Any, ...], make: Callable[[], Any]) -> Any:
    """Return a study that is kept under a key, or make and keep it."""
    found = _studies.get(key)
    return _studies.keep(key, make()) if found is None else found
