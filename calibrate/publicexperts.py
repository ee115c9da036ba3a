"""Fits of the public tables' lanes beyond dense 16-bit kernels as a run: experts, latent attention, low precision.

    python -m membound.calibrate.publicexperts h100_sxm --out out/experts-h100.json
    membound calibrate publish out/experts-h100.json --force

Latent attention and low-precision linears are fitted on the part of the frozen splits that a fit may see, and their
errors on the other parts are told. Experts are fitted on all models: a fit's own residuals are of models that it has
seen, so the spread that a lane states is that of the folds, each scored on the model that it left out: what a
simulation of another model has to expect.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from ..hwmodels.spreads import residual_spread
from .accuracy import lane_predicted, left_out
from .fit.base import Array, FitResult, errors
from .fit.moe import models_of, moe_regimes
from .localspread import spread_by_regime
from .publiclanes import (
    DEVICES,
    FOLD_ROWS,
    FOLD_SCORED,
    ONE_MODEL_LANES,
    PUBLIC_LANES,
    SCORED_ROWS,
    STAND_INS,
    PublicLane,
)
from .run import CalibrationRun
from .table import KernelTable, software_line
from .uncertainty import Predictive

SOURCE: Final = "ai-dynamo/aiconfigurator@095f58a5"
RUN: Final = "public-tables"
FOLD_EVALUATIONS: Final = 10
TABLES: Final = Path(__file__).parents[2] / "shared" / "measured" / "kernels"


def published_fit(lane: PublicLane, folder: Path) -> FitResult:
    """Fit a lane to all that it may see and state what errors of the rest are.

    Of experts the residuals are those of models left out. A kernel timed on one model leaves none out: its spread is
    that of starting values.

    Parameters
    ----------
    lane : of the public tables
    folder : of the tables
    """
    table, _ = lane.read(folder)
    if lane.op != "moe":
        return _of_the_split(lane, table)
    fit, models = lane.fit(table), set(models_of(table))
    notes = (
        software_line(table),
        f"{len(table)} rows of {len(models)} model{'s' if len(models) > 1 else ''}",
    )
    if len(models) == 1:
        return replace(fit, residual_sd={"all": residual_spread("moe", "prior").memory}, notes=notes)
    held, found = models_left_out(lane, table)
    ratio = found.time / held.latency_us
    return replace(
        fit,
        residual_sd=spread_by_regime(np.log(ratio), moe_regimes(held)),
        notes=(*notes, left_out_line(ratio)),
    )


def _of_the_split(lane: PublicLane, table: KernelTable) -> FitResult:
    parts = lane.parts(table)
    fit, notes = lane.fit(parts["train"]), [software_line(table)]
    for name in ("unseen", "beyond"):
        if len(rows := parts[name].sample(SCORED_ROWS, seed=1)):
            found = errors(lane.predict_us(fit.params, rows) / rows.latency_us)
            notes.append(f"{name} MAPE {100 * found['mape']:.1f} %, median {100 * found['median_ape']:.1f} %")
    return replace(fit, notes=(*fit.notes, *notes))


def models_left_out(
    lane: PublicLane, table: KernelTable, rows: int = FOLD_ROWS, scored: int = FOLD_SCORED
) -> tuple[KernelTable, Predictive]:
    """Return rows of each model with their predictions by a fit to all other models.

    Parameters
    ----------
    rows, scored : rows fitted and scored in each fold
    """

    def fold(seen: KernelTable, out: KernelTable) -> Predictive:
        return lane_predicted(lane, lane.fit(seen, rows=rows, evaluations=FOLD_EVALUATIONS), out)

    return left_out(table, models_of(table), fold, scored)


def left_out_line(ratio: Array) -> str:
    """Return the errors on models left out in one line, from predicted/measured.

    >>> left_out_line(np.array([0.9, 1.0, 1.1]))
    'left-out model MAPE 6.7 %, median 10.0 %, p90 10.0 %'
    """
    found = errors(ratio)
    names = {"mape": "MAPE", "median_ape": "median", "p90_ape": "p90"}
    return "left-out model " + ", ".join(f"{says} {100 * found[name]:.1f} %" for name, says in names.items())


def standing_in(gpu: str, fits: Sequence[FitResult]) -> list[FitResult]:
    """Return the lanes of a GPU that other software's fits stand in for."""
    wanted = {(family, of): lane for (on, family, lane), of in STAND_INS.items() if on == gpu}
    return [
        replace(
            fit,
            lane=wanted[fit.family, fit.lane],
            level="bridged",
            notes=(f"{fit.lane}'s lane, the same kernels tuned as they are served", *fit.notes),
        )
        for fit in fits
        if (fit.family, fit.lane) in wanted
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Fit the expert lanes of one GPU and save them as a run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("gpu", choices=list(DEVICES), help="GPU of the tables")
    parser.add_argument("--out", type=Path, required=True, help="file of the run")
    parser.add_argument("--only", default="", help="part of the lane names to fit (moe_fp8_block/vllm)")
    parser.add_argument("--tables", type=Path, default=TABLES, help="folder of kernels_aic_*.parquet")
    chosen = parser.parse_args(arguments)
    fits: list[FitResult] = []
    for lane in (*PUBLIC_LANES, *ONE_MODEL_LANES):
        if lane.gpu == chosen.gpu and chosen.only in lane.name:
            fits.append(published_fit(lane, chosen.tables))
            said = f"fitted MAPE {100 * fits[-1].train['mape']:.1f} %; {fits[-1].notes[-1]}"
            sys.stderr.write(f"{lane.name}: {said}\n")
            lanes = (*fits, *standing_in(chosen.gpu, fits))
            run = CalibrationRun(RUN, DEVICES[chosen.gpu], SOURCE, lanes)
            run.save(chosen.out)


if __name__ == "__main__":
    main()
