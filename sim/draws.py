"""A run with its interval: the same requests served again by devices and engines as they might be.

Every draw has parameters of its own (``hwmodels.uncertainty``); workload, seed and all other random numbers are
those of the point run, so what draws differ in is what is not known of the hardware. The point run itself is
untouched. Two scenarios with one seed share their draws: ``Draws.ratio`` of them holds no more than what
they do not have in common.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from ..hwmodels.errors import MemboundError
from ..hwmodels.uncertainty import draw_device, draw_engine
from .books.record import RunRecord
from .metrics import metrics
from .metrics.figures import Figures
from .metrics.latency import latency
from .metrics.slo import slo
from .output.result import SimulationResult
from .run import play, simulate
from .scenario.resolve import ResolvedScenario, resolve
from .workload.workload import Workload

if TYPE_CHECKING:
    from ..hwmodels.steptypes import StepDevice
    from .scenario.schema import Scenario

Progress = Callable[[int, int], None]
NOMINAL = 0.9
MIN_DRAWS, MAX_DRAWS = 2, 10_000
MOST_JOBS = 1024
"""Most processes."""
FEW = 19
"""The extremes of fewer draws than this hold less than 90 % of what could be."""


class DrawsError(MemboundError):
    """A number of draws or of processes that cannot be."""


@dataclass(frozen=True, slots=True)
class Draws:
    """The figures of all draws of one scenario.

    Attributes
    ----------
    metrics : dotted name (``latency.ttft_s.mean``) -> value in each draw, shape (n,)
    n : draws
    """

    metrics: Mapping[str, NDArray[np.float64]]
    n: int

    def interval(self, nominal: float = NOMINAL) -> dict[str, tuple[float, float]]:
        """Return metric -> [low, high] that holds ``nominal`` of what could be, with equal tails.

        Quantile p of n draws is at rank p (n + 1), between the extremes (Weibull): so many of further draws are
        expected below it, whatever their distribution.
        """
        tails = (0.5 * (1.0 - nominal), 0.5 * (1.0 + nominal))
        found: dict[str, tuple[float, float]] = {}
        for name, values in self.metrics.items():
            low, high = np.quantile(values, tails, method="weibull").tolist()
            found[name] = (low, high)
        return found

    def ratio(self, base: Draws) -> Draws:
        """Return these figures over those of ``base``, draw by draw: what is common to both cancels.

        Raises
        ------
        DrawsError : the two have not the same number of draws
        """
        if base.n != self.n:
            raise DrawsError(f"{self.n} draws over {base.n}; allowed: as many on both sides")
        common = {
            name: (values, base.metrics[name])
            for name, values in self.metrics.items()
            if name in base.metrics
        }
        return Draws({name: a / b for name, (a, b) in common.items() if np.all(b != 0.0)}, self.n)


def simulate_draws(
    scenario: Scenario | ResolvedScenario,
    draws: int = 32,
    *,
    jobs: int | None = None,
    keep_steps: bool = False,
    progress: Progress | None = None,
    draws_progress: Progress | None = None,
) -> SimulationResult:
    """Run a scenario to its end, and again with every draw, so that its summary has intervals.

    Parameters
    ----------
    scenario, keep_steps, progress : as in ``sim.run.simulate``, for the point run
    draws : how many, 2 to 10,000
    jobs : processes; default: one for each core. The figures do not depend on it
    draws_progress : called after every draw with how many are done, and all of them

    Raises
    ------
    MemboundError : as ``simulate``; too few or too many draws
    """
    check_draws(draws, jobs)
    resolved = scenario if isinstance(scenario, ResolvedScenario) else resolve(scenario)
    result = simulate(resolved, keep_steps=keep_steps, progress=progress)
    found = run_draws(resolved, draws, jobs=jobs, progress=draws_progress)
    return with_interval(result, found)


def with_interval(result: SimulationResult, draws: Draws) -> SimulationResult:
    """Return a result whose summary states the intervals of some draws."""
    record = result.record
    few = [f"{draws.n} draws cannot resolve a 90 % interval; allowed: {FEW} or more"] if draws.n < FEW else []
    return SimulationResult(
        replace(record, intervals=draws.interval(), draws=draws.n, warnings=(*record.warnings, *few))
    )


def run_draws(
    resolved: ResolvedScenario, draws: int, *, jobs: int | None = None, progress: Progress | None = None
) -> Draws:
    """Run the draws 0 to ``draws - 1`` of a scenario; a metric that some draw has no value of is left out."""
    check_draws(draws, jobs)
    workers = min(jobs or os.cpu_count() or 1, draws)
    rows: list[dict[str, float]] = []
    for row in _rows(resolved, draws, workers):
        rows.append(row)
        if progress is not None:
            progress(len(rows), draws)
    names = [name for name in rows[0] if all(name in row for row in rows)]
    return Draws({name: np.array([row[name] for row in rows]) for name in names}, draws)


def check_draws(draws: int, jobs: int | None = None) -> None:
    """Refuse numbers of draws and processes that cannot be, before the run that would use them."""
    if not MIN_DRAWS <= draws <= MAX_DRAWS:
        raise DrawsError(f"draws {draws}; allowed: {MIN_DRAWS} to {MAX_DRAWS}")
    if jobs is not None and not 1 <= jobs <= MOST_JOBS:
        raise DrawsError(f"jobs {jobs}; allowed: 1 to {MOST_JOBS:,}")


def _rows(resolved: ResolvedScenario, draws: int, workers: int) -> Iterable[dict[str, float]]:
    """Yield the figures of one draw after the other, in their order."""
    if workers == 1:
        return (one_draw(resolved, draw) for draw in range(draws))
    import joblib  # pyright: ignore[reportMissingTypeStubs]

    library = cast("Any", joblib)
    tasks = (library.delayed(one_draw)(resolved, draw) for draw in range(draws))
    return library.Parallel(n_jobs=workers, return_as="generator", batch_size=1)(tasks)


def one_draw(resolved: ResolvedScenario, draw: int) -> dict[str, float]:
    """Run one draw and return its figures by dotted name."""
    return headline(_record(resolved, draw))


def _record(resolved: ResolvedScenario, draw: int) -> RunRecord:
    """Serve the scenario's requests with one draw of its device and engine."""
    seed = resolved.scenario.simulation.seed
    workload = resolved.workload
    assert workload is not None

    def vary(own: ResolvedScenario) -> tuple[ResolvedScenario, StepDevice]:
        drawn = replace(own, engine=draw_engine(own.engine, seed, draw, own.device))
        return drawn, cast("StepDevice", draw_device(own.device, seed, draw, own.engine))

    return play(resolved, turned_around(workload, vary(resolved)[0]), vary=vary, levers=False)


def turned_around(workload: Workload, drawn: ResolvedScenario) -> Workload:
    """Return a load with the scenario's engine's time between an answer and a closed loop's next request."""
    closed, engine = workload.closed_loop, drawn.engine
    if closed is None or engine.scope != "full":
        return workload
    turnaround_s = engine.client_overhead_s + engine.client_turnaround_s
    return replace(workload, closed_loop=replace(closed, turnaround_ns=round(turnaround_s * 1e9)))


def headline(record: RunRecord) -> dict[str, float]:
    """Return the figures that intervals are stated of, by their dotted name in ``summary.json``."""
    parts: dict[str, Figures] = {f"latency.{name}": row for name, row in latency(record).items()}
    parts |= {
        "throughput": metrics.throughput(record),
        "slo": slo(record),
        "time_share": metrics.time_share(record),
        "limiter": metrics.limiter_share(record),
        "utilization": metrics.utilization(record),
        "kv": metrics.kv(record),
        "cost": metrics.cost(record),
    }
    return {
        f"{part}.{name}": float(value)
        for part, figures in parts.items()
        for name, value in figures.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
