"""Fit of a board's power to runs whose average power was measured beside their times.

    python -m membound.calibrate.power ../shared/measured/steps/steps_splitwise.csv.gz

A run is one prefill and its decode steps. What the boards do in it comes from the same account that a simulation adds
up (matrix work over peak, memory traffic at its reachable rate), over the measured times; the shares of the power limit
follow by robust least squares in logarithms. Every setting (model and ranks) is also predicted by a fit to the others.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from ..hwmodels.account import StepAccount, StepColumns, account
from ..hwmodels.device import load_device
from ..hwmodels.engine import load_engine
from ..hwmodels.model import load_model
from ..hwmodels.stepmodel import Parallelism, StepModel
from .errors import CalibrationError

Array = NDArray[np.float64]

DEVICE: Final = "a100_sxm_80gb"
ENGINE: Final = "vllm-0.24"
MODELS: Final = {"llama2-70b": "llama-2-70b", "bloom-176b": "bloom-176b"}
LONGEST: Final = 2048
"""Averages of longer prompts fall below those of their own decode steps while more is computed (down to 17 % of the
limit, less than any other row): they were averaged over more than the run, and are left out [tokens]."""
_START: Final = (0.25, 1.0, 0.5)
_SCALE: Final = 0.03


@dataclass(frozen=True, slots=True)
class PowerRuns:
    """Runs with their measured power; arrays of shape (runs,).

    Attributes
    ----------
    setting : model and ranks of each run
    tensor, dram : matrix work over peak and memory traffic at its reachable rate, as shares of the run's time
    average : measured average power over the board's limit
    """

    setting: tuple[str, ...]
    tensor: Array
    dram: Array
    average: Array


@dataclass(frozen=True, slots=True)
class PowerFit:
    """Shares of the power limit.

    Attributes
    ----------
    estimate, stderr : of idle, compute and memory
    ratio : measured over predicted power of every run, by a fit to the other settings, shape (runs,)
    """

    estimate: tuple[float, float, float]
    stderr: tuple[float, float, float]
    ratio: Array

    @property
    def spread(self) -> float:
        """Half width of the central nine tenths of measured over predicted power."""
        return float(np.percentile(np.abs(np.log(self.ratio)), 90.0))


def read_power_runs(path: str | Path) -> PowerRuns:
    """Read runs in the schema of ``steps_splitwise.csv.gz``; repeats of a run become their median.

    Raises
    ------
    CalibrationError
        No row has a measured power.
    """
    from pyarrow import csv

    rows = csv.read_csv(path).to_pylist()
    runs: dict[tuple[str, int, int, int, int], list[dict[str, float]]] = {}
    for row in rows:
        if row["average_power"] > 0 and row["isl"] <= LONGEST:
            key = (row["model"], row["tp"], row["isl"], row["batch"], row["osl"])
            runs.setdefault(key, []).append(row)
    if not runs:
        raise CalibrationError(
            f"{path}: no row with an average power and a prompt of at most {LONGEST} tokens"
        )
    found = [_run(key, group) for key, group in sorted(runs.items())]
    return PowerRuns(
        tuple(f"{key[0]} on {key[1]}" for key in sorted(runs)),
        *(np.array(column) for column in zip(*found, strict=True)),
    )


def _run(
    key: tuple[str, int, int, int, int], group: Sequence[dict[str, float]]
) -> tuple[float, float, float]:
    """Return a run's shares of matrix work and memory traffic, and its average power."""
    model, ranks, isl, batch, osl = key

    def median(name: str) -> float:
        return float(np.median([row[name] for row in group]))

    prefill_s, step_s = median("prefill_time_ms") / 1e3, median("decode_step_time_ms") / 1e3
    prefill, decode = account_of_run(model, ranks, isl, batch, osl, prefill_s, step_s)
    total_s = prefill_s + (osl - 1) * step_s
    tensor = float(prefill.tensor_active_s.sum() + decode.tensor_active_s.sum()) / total_s
    dram = float(prefill.dram_active_s.sum() + decode.dram_active_s.sum()) / total_s
    return tensor, dram, median("average_power")


def account_of_run(
    model: str, ranks: int, isl: int, batch: int, osl: int, prefill_s: float, step_s: float
) -> tuple[StepAccount, StepAccount]:
    """Return what one prefill of ``batch`` prompts and the decode steps after it do, in their measured times."""
    parallelism = Parallelism(tensor_parallel_size=ranks)
    steps = StepModel(
        load_device(DEVICE), load_engine(ENGINE), load_model(MODELS.get(model, model)), parallelism
    )
    prefill = _columns(1, 0, 0, batch, [isl] * batch, prefill_s)
    decode = _columns(osl - 1, batch, isl + 1, batch, [], step_s)
    return account(steps, prefill), account(steps, decode)


def _columns(
    steps: int, decoding: int, context: int, sampled: int, prompts: Sequence[int], step_s: float
) -> StepColumns:
    def whole(*values: int) -> NDArray[np.int64]:
        return np.array(values, dtype=np.int64)

    return StepColumns(
        steps=whole(steps),
        n_decode=whole(decoding),
        context_sum=whole(decoding * context),
        longest=whole(context),
        sampled=whole(sampled),
        prefill_starts=whole(0, len(prompts)),
        prefill_new=whole(*prompts),
        prefill_cached=np.zeros(len(prompts), dtype=np.int64),
        duration_ns=np.full(steps, round(step_s * 1e9), dtype=np.int64),
    )


def fit_power_least_squares(runs: PowerRuns) -> PowerFit:
    """Fit the shares of the power limit to runs; their errors come from settings left out.

    Raises
    ------
    CalibrationError
        Fewer than two settings, so that none can be left out.
    """
    settings = sorted(set(runs.setting))
    if len(settings) < 2:
        raise CalibrationError(
            f"power of one setting only ({settings[0]}); at least two are needed to judge a fit"
        )
    estimate, stderr = _fit(runs, np.ones(len(runs.setting), dtype=bool))
    ratio = np.empty(len(runs.setting))
    for setting in settings:
        held = np.array([name == setting for name in runs.setting])
        shares, _ = _fit(runs, ~held)
        ratio[held] = runs.average[held] / _predicted(shares, runs)[held]
    return PowerFit(estimate, stderr, ratio)


def _predicted(shares: Sequence[float], runs: PowerRuns) -> Array:
    return np.minimum(1.0, shares[0] + shares[1] * runs.tensor + shares[2] * runs.dram)


def _fit(
    runs: PowerRuns, chosen: NDArray[np.bool_]
) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
    def residuals(logs: Array) -> Array:
        return np.log(_predicted(np.exp(logs), runs) / runs.average)[chosen]

    found = least_squares(residuals, np.log(_START), loss="soft_l1", f_scale=_SCALE)
    estimate = np.exp(found.x)
    left = residuals(found.x)
    variance = float((left**2).sum()) / max(left.size - 3, 1)
    covariance = np.linalg.pinv(found.jac.T @ found.jac) * variance
    stderr = estimate * np.sqrt(np.diag(covariance))
    return tuple(estimate.tolist()), tuple(stderr.tolist())  # pyright: ignore[reportReturnType]


def main(argv: Sequence[str] | None = None) -> int:
    """Print the fit of a table as the entry of ``hwmodels/power.yaml``."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("table", type=Path, help="runs with average_power over the board's limit")
    runs = read_power_runs(parser.parse_args(argv).table)
    fit = fit_power_least_squares(runs)
    sys.stdout.write(f"boards:\n  {DEVICE}:\n")
    for name, value, error in zip(("idle", "compute", "memory"), fit.estimate, fit.stderr, strict=True):
        sys.stdout.write(f"    {name}: {{value: {value:.4f}, stderr: {error:.4f}}}\n")
    mape = float(np.mean(np.abs(1.0 / fit.ratio - 1.0)))
    sys.stdout.write(f"    spread: {fit.spread:.3f}\n")
    sys.stdout.write(f"# {len(runs.setting)} runs; mean error of settings left out {100 * mape:.1f} %\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
