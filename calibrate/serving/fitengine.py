"""An engine's step parameters from served runs: those with which the simulator's latencies are the measured ones.

What a run is judged by is what it is fitted by: mean TTFT and TPOT, each over what it may be off; at saturation the
rate that is sustained. Few parameters, wide steps: the loss has waves (``widesteps``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ...hwmodels.engine import EngineProfile, load_engine
from ...sim.draws import turned_around
from ...sim.scenario.resolve import ResolvedScenario
from ..enginefit import EngineFit, Estimate, RunOutcome, jackknife
from ..engineprofile import with_step
from ..errors import CalibrationError
from ..widesteps import Axis, Found, linear_move, loss, search, standard_errors
from .compare import compare
from .play import play_all
from .run import ServedRun, Skipped

Array = NDArray[np.float64]
Errors = Mapping[str, float]

TOLERANCE: Final = {"ttft_mean": 0.05, "tpot_mean": 0.02, "e2e_mean": 0.02, "throughput": 0.04}
"""What a figure of a run may be off, as ``benchmarks/serving_bars.yaml`` has it for replays [-]."""
REPLICATES: Final = 0.5
"""Runs of the same load differ by up to about this part of that; residuals below it say nothing of the parameters."""
RANGES: Final[Mapping[str, tuple[float, float, float]]] = {
    "host_exposed_s": (1e-4, 0.0, 1.0),
    "host_per_seq_s": (1e-5, 0.0, 0.1),
    "engine_gemm_efficiency": (0.06, 0.05, 5.0),
    "mixed_decode_factor": (0.4, 1.0, 8.0),
    "elementwise_t0_s": (1e-6, 0.0, 1e-3),
    "elementwise_eb": (0.1, 0.01, 1.5),
    "client_overhead_s": (1e-3, 0.0, 1.0),
    "client_turnaround_s": (1e-3, 0.0, 1.0),
}
"""What can be fitted: width of the first step, lowest and highest value, in the unit of the engine file."""
USUAL: Final = ("host_exposed_s", "engine_gemm_efficiency", "client_overhead_s")
"""What is fitted unless told otherwise; the rest stays at the profile's values."""
_RELATIVE_WIDTH: Final = 0.25


def fit_engine(
    runs: Sequence[ServedRun],
    parameters: Sequence[str] = (),
    *,
    engine: EngineProfile | None = None,
    start: Mapping[str, float] | None = None,
    held_out: Sequence[str] = (),
    jobs: int = 1,
) -> EngineFit:
    """Fit step parameters of the engine that served some runs.

    Parameters
    ----------
    runs : served runs; those the splits keep for judging are refused
    parameters : names of ``RANGES``; default: those of ``USUAL`` that the runs can show
    engine : profile to start from; default: the one that all runs name
    start : values to start from instead of the profile's
    held_out : ids of runs that are judged only
    jobs : processes

    Raises
    ------
    CalibrationError : runs of several engines, judged rows, an unknown parameter, or too few figures
    """
    unknown_ids = [name for name in held_out if name not in {run.label.run_id for run in runs}]
    if unknown_ids:
        raise CalibrationError(f"--leave-out {unknown_ids[0]!r} is none of the {len(runs)} runs")
    fitted = [run for run in runs if run.label.run_id not in held_out]
    _refuse_judged(fitted)
    profile = engine or _common_engine(runs)
    base = with_start(profile, start or {})
    names, notes = _chosen(fitted, parameters, base)
    served = _Served([*fitted, *(run for run in runs if run.label.run_id in held_out)], base, names, jobs)
    first = tuple(getattr(base.step, name).value for name in names)
    before = served.errors(first)
    keys = [counted(run, errors) for run, errors in zip(fitted, before, strict=False)]
    figures = sum(map(len, keys))
    if figures < len(names):
        raise CalibrationError(
            f"{len(fitted)} runs give {figures} figures to fit {len(names)} parameters ({', '.join(names)}); allowed: "
            "as many figures or more: add runs, or name fewer with --parameter"
        )

    def residuals(values: tuple[float, ...]) -> Array:
        return _residuals(keys, served.errors(values))

    axes = [axis_of(name, value) for name, value in zip(names, first, strict=True)]
    found = search(residuals, axes)
    others = _without_each(found, keys, axes)
    spread = math.sqrt(loss(found.residuals) / max(figures - len(names), 1))
    stderr = standard_errors(found.slopes, max(spread, REPLICATES))
    shaken = jackknife([each for each in others if each is not None])
    return EngineFit(
        base=profile,
        estimates=tuple(
            Estimate(
                name,
                found.values[k],
                float(stderr[k]),
                first[k],
                getattr(profile.step, name).stderr,
                None if shaken is None else shaken[k],
                getattr(base.step, name).unit,
            )
            for k, name in enumerate(names)
        ),
        outcomes=tuple(_outcomes(served, before, found, others)),
        spread=math.sqrt(loss(found.residuals) / figures),
        evaluations=found.evaluations,
        notes=notes,
        through=_one_device(fitted),
    )


def _one_device(runs: Sequence[ServedRun]) -> str:
    """Return the device of the catalogue that served all runs; empty where there is no one such."""
    names = {run.scenario.device if isinstance(run.scenario.device, str) else "" for run in runs}
    return names.pop() if len(names) == 1 else ""


def with_start(engine: EngineProfile, start: Mapping[str, float]) -> EngineProfile:
    """Return an engine with other values to start from.

    Raises
    ------
    CalibrationError : a parameter that cannot be fitted, or a value out of its range
    """
    for name, value in start.items():
        low, high = RANGES[checked(name)][1:]
        if not low <= value <= high:
            raise CalibrationError(f"{name} cannot start at {value:g}; allowed: {low:g} to {high:g}")
    return with_step(engine, start, "where a fit starts") if start else engine


def checked(name: str) -> str:
    """Return the name of a parameter that can be fitted, ``_s`` added where it is missing.

    Raises
    ------
    CalibrationError : none of that name
    """
    from ...hwmodels.errors import unknown

    for known in RANGES:
        if name.replace("-", "_") in (known, known.removesuffix("_s")):
            return known
    raise CalibrationError(unknown("step parameter", name, list(RANGES)))


def axis_of(name: str, start: float) -> Axis:
    """Return the axis along which a parameter is searched."""
    width, low, high = RANGES[name]
    return Axis(name, start, max(width, _RELATIVE_WIDTH * start if name.endswith("_s") else 0.0), low, high)


def counted(run: ServedRun, errors: Errors) -> tuple[str, ...]:
    """Return which figures of a run are fitted."""
    if run.saturated:
        return ("throughput",) if "throughput" in errors else ()
    found = tuple(name for name in ("ttft_mean", "tpot_mean") if name in errors)
    return found if "tpot_mean" in found or "e2e_mean" not in errors else (*found, "e2e_mean")


def _refuse_judged(runs: Sequence[ServedRun]) -> None:
    judged = [run.label.run_id for run in runs if run.label.part in ("judge", "replicate", "exclude")]
    if judged:
        raise CalibrationError(
            f"{len(judged)} of {len(runs)} runs are not to be fitted ({judged[0]} and others): their split keeps them; "
            "allowed: part fit"
        )
    if not runs:
        raise CalibrationError("no run is left to fit")


def _common_engine(runs: Sequence[ServedRun]) -> EngineProfile:
    names = list(dict.fromkeys(run.scenario.engine for run in runs))
    if len(names) > 1:
        raise CalibrationError(
            f"the runs are of {len(names)} engines ({', '.join(map(str, names))}); allowed: one: choose runs with "
            "--select, or take one profile for all with --engine"
        )
    return load_engine(names[0])


def _chosen(
    runs: Sequence[ServedRun], parameters: Sequence[str], base: EngineProfile
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what is fitted, and what is not although it usually is."""
    names = tuple(dict.fromkeys(checked(name) for name in parameters)) or USUAL
    why = ""
    if all(run.client_overhead_s is not None for run in runs):
        why = "the source of these runs states it"
    elif base.scope != "full":
        why = f"{base.id} has no step times of its own"
    if "client_overhead_s" not in names or not why:
        return names, ()
    if parameters:
        raise CalibrationError(f"client_overhead_s cannot be fitted: {why}")
    return tuple(name for name in names if name != "client_overhead_s"), (
        f"client_overhead_s not fitted: {why}",
    )


def _residuals(keys: Sequence[tuple[str, ...]], errors: Sequence[Errors]) -> Array:
    """Return the log of simulated over measured, over what it may be off, of every figure that counts."""
    return np.array(
        [
            math.log1p(found[name]) / TOLERANCE[name]
            for names, found in zip(keys, errors, strict=False)
            for name in names
        ]
    )


def _without_each(
    found: Found, keys: Sequence[tuple[str, ...]], axes: Sequence[Axis]
) -> list[tuple[float, ...] | None]:
    """Return the estimates without each run: one linear move from the fit to all; None where the rest is too little."""
    low, high, widths = (np.array([getattr(axis, end) for axis in axes]) for end in ("low", "high", "width"))
    here = np.array(found.values)
    owner = np.repeat(np.arange(len(keys)), [len(names) for names in keys])
    estimates: list[tuple[float, ...] | None] = []
    for run in range(len(keys)):
        rest = owner != run
        if np.count_nonzero(rest) < len(axes) or np.linalg.matrix_rank(found.slopes[rest]) < len(axes):
            estimates.append(None)
            continue
        move = linear_move(found.residuals[rest], found.slopes[rest], here, low, high, widths)
        estimates.append(tuple(map(float, np.clip(here + move, low, high))))
    return estimates


def _outcomes(
    served: _Served, before: Sequence[Errors], found: Found, others: Sequence[tuple[float, ...] | None]
) -> list[RunOutcome]:
    after = served.errors(found.values)
    outcomes: list[RunOutcome] = []
    for at, run in enumerate(served.runs):
        fitted = at < len(others)
        values = others[at] if fitted else None
        left_out = served.errors_of(at, values) if values is not None else None
        outcomes.append(RunOutcome(run.label.run_id, fitted, _plain(before[at]), _plain(after[at]), left_out))
    return outcomes


def _plain(errors: Errors) -> dict[str, float]:
    return {name: errors[name] for name in TOLERANCE if name in errors}


class _Served:
    """Runs that are simulated again with other step parameters."""

    def __init__(
        self, runs: Sequence[ServedRun], base: EngineProfile, names: Sequence[str], jobs: int
    ) -> None:
        self.runs, self.base, self.names, self.jobs = runs, base, names, jobs
        self._known: dict[tuple[float, ...], list[Errors]] = {}

    def errors(self, values: Sequence[float]) -> list[Errors]:
        """Return the errors of every run."""
        key = tuple(values)
        if key not in self._known:
            self._known[key] = self._play(self.runs, key)
        return self._known[key]

    def errors_of(self, at: int, values: Sequence[float]) -> Errors:
        """Return the errors of one run."""
        return _plain(self._play([self.runs[at]], values)[0])

    def _play(self, runs: Sequence[ServedRun], values: Sequence[float]) -> list[Errors]:
        engine = with_step(self.base, dict(zip(self.names, values, strict=True)), "tried")
        found: list[Errors] = []
        for run, outcome in play_all(runs, jobs=self.jobs, server=_Server(engine)):
            if isinstance(outcome, Skipped):
                raise CalibrationError(f"{run.label.run_id} cannot be simulated: {outcome.reason}")
            found.append(compare(run, outcome).error)
        return found


class _Server:
    """Puts an engine in the place of a scenario's."""

    def __init__(self, engine: EngineProfile) -> None:
        self._engine = engine

    def __call__(self, resolved: ResolvedScenario) -> ResolvedScenario:
        load, changed = resolved.workload, replace(resolved, engine=self._engine)
        return changed if load is None else replace(changed, workload=turned_around(load, changed))
