"""Logs of the steps of a real engine, one JSON object a line, and the step parameters that they tell.

``{"seconds": 0.0123, "scheduled": [[1, 842], [256, 0]]}``: how long a step took, from its composition to its tokens,
and of every scheduled sequence the new tokens and those that were in the cache before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import numpy as np

from ..hwmodels.engine import EngineProfile
from ..hwmodels.plainjson import plain_json
from ..hwmodels.stepmodel import StepModel
from .enginefit import EngineFit, Estimate, RunOutcome, jackknife
from .errors import CalibrationError
from .livesteps import FEWEST_STEPS, GRID, StepFit, fit_step_times, times_of
from .reference_engine import ServedStep

Timer = Callable[[EngineProfile], StepModel]
PARAMETERS: Final = ("host_exposed_s", "host_per_seq_s", "engine_gemm_efficiency")
BLOCKS: Final = 8
"""Fewer logs than three are cut into so many parts, so that the errors of the estimates can be told."""


@dataclass(frozen=True, slots=True)
class StepLog:
    """The steps of one run."""

    name: str
    steps: tuple[ServedStep, ...]


def is_step_log(path: Path) -> bool:
    """Return whether a file's first line is a step."""
    try:
        with path.open(encoding="utf-8") as file:
            first: object = plain_json(file.readline())
    except (OSError, ValueError):
        return False
    return isinstance(first, dict) and {"seconds", "scheduled"} <= set(cast("dict[str, Any]", first))


def read_steps(path: Path) -> StepLog:
    """Read a log of steps.

    Raises
    ------
    CalibrationError : a line that is no step
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CalibrationError(f"{path}: cannot be read: {error}") from None
    steps = tuple(_step(path, number, line) for number, line in enumerate(lines, start=1) if line.strip())
    return StepLog(path.name, steps)


def _step(path: Path, number: int, line: str) -> ServedStep:
    try:
        found = plain_json(line)
        seconds = float(found["seconds"])
        scheduled = [(int(new), int(before)) for new, before in found["scheduled"]]
    except (ValueError, TypeError, KeyError) as error:
        raise CalibrationError(
            f"{path}: line {number}: no step ({type(error).__name__}: {error}); allowed: "
            '{"seconds": 0.01, "scheduled": [[new tokens, tokens before], ...]}'
        ) from None
    if not (math.isfinite(seconds) and seconds > 0 and scheduled):
        raise CalibrationError(
            f"{path}: line {number}: {seconds:g} s for {len(scheduled)} sequences; allowed: more than 0 of both"
        )
    if any(new < 1 or before < 0 for new, before in scheduled):
        raise CalibrationError(
            f"{path}: line {number}: token counts {scheduled}; allowed: 1 or more, 0 or more"
        )
    return ServedStep(
        start_ns=0,
        end_ns=max(round(seconds * 1e9), 1),
        tokens={at: new for at, (new, _) in enumerate(scheduled)},
        decodes=tuple(before + 1 for new, before in scheduled if new == 1),
        prefill=tuple((new, before) for new, before in scheduled if new > 1),
        used_blocks=0,
    )


def fit_step_logs(
    logs: Sequence[StepLog], engine: EngineProfile, timer: Timer, held_out: Sequence[str] = ()
) -> EngineFit:
    """Fit host time per step and per sequence, and the GEMM rate, to logs of steps.

    Parameters
    ----------
    logs : of runs on one server
    engine : profile to start from
    timer : the server's step model with a profile
    held_out : names of logs that are judged only

    Raises
    ------
    CalibrationError : too few steps, or no log of a name
    """
    missing = [name for name in held_out if name not in {log.name for log in logs}]
    if missing:
        raise CalibrationError(f"--leave-out {missing[0]!r} is none of the {len(logs)} logs")
    fitted = [log for log in logs if log.name not in held_out]
    count = sum(len(log.steps) for log in fitted)
    if count < FEWEST_STEPS:
        raise CalibrationError(f"{count} steps to fit; allowed: {FEWEST_STEPS} or more")
    found = fit_step_times(_all(fitted), engine, timer)
    by_log = [_rest(fitted, at, engine, timer) for at in range(len(fitted))]
    parts = by_log if len(fitted) >= 3 else _cut(fitted)
    left = [
        each if isinstance(each, StepFit) else _fit(each, engine, timer) for each in parts if each is not None
    ]
    errors = jackknife([_values(each.engine) for each in left]) or [math.inf] * len(PARAMETERS)
    errors[2] = math.hypot(
        errors[2], GRID / math.sqrt(12)
    )  # between two points of the scan any value is as likely
    values = _values(found.engine)
    outcomes = [
        RunOutcome(
            log.name,
            log in fitted,
            _error(log, timer(engine)),
            _error(log, timer(found.engine)),
            None if other is None else _error(log, timer(other.engine)),
        )
        for log, other in [
            *zip(fitted, by_log, strict=True),
            *((log, None) for log in logs if log not in fitted),
        ]
    ]
    return EngineFit(
        base=engine,
        estimates=tuple(
            Estimate(
                name,
                values[k],
                errors[k],
                getattr(engine.step, name).value,
                getattr(engine.step, name).stderr,
                errors[k],
                getattr(engine.step, name).unit,
            )
            for k, name in enumerate(PARAMETERS)
        ),
        outcomes=tuple(outcomes),
        spread=found.mape,
        evaluations=0,
        notes=(found.describe().splitlines()[1],),
    )


def _all(logs: Sequence[StepLog]) -> list[ServedStep]:
    return [step for log in logs for step in log.steps]


def _fit(steps: Sequence[ServedStep], engine: EngineProfile, timer: Timer) -> StepFit:
    return fit_step_times(steps, engine, timer)


def _rest(logs: Sequence[StepLog], at: int, engine: EngineProfile, timer: Timer) -> StepFit | None:
    """Return the fit to all logs but one; None where they are too few."""
    steps = _all([log for i, log in enumerate(logs) if i != at])
    return _fit(steps, engine, timer) if len(steps) >= FEWEST_STEPS else None


def _cut(logs: Sequence[StepLog]) -> list[list[ServedStep]]:
    """Return all steps without each of ``BLOCKS`` consecutive parts."""
    steps = _all(logs)
    part = np.arange(len(steps)) * BLOCKS // len(steps)
    return [[step for step, own in zip(steps, part, strict=True) if own != at] for at in range(BLOCKS)]


def _values(engine: EngineProfile) -> list[float]:
    return [getattr(engine.step, name).value for name in PARAMETERS]


def _error(log: StepLog, timer: StepModel) -> dict[str, float]:
    """Return how far off the summed time of a log's steps is, and a step's on average [-]."""
    taken = np.array([step.seconds for step in log.steps])
    told = times_of(log.steps, timer)
    return {
        "sum": float(told.sum() / taken.sum() - 1.0),
        "step_mape": float(np.abs(told / taken - 1.0).mean()),
    }
