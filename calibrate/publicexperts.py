"""Fits of the public tables' expert lanes as a run: each lane on all models, its residual from models left out.

    python -m membound.calibrate.publicexperts h100_sxm --out out/experts-h100.json
    membound calibrate publish out/experts-h100.json --force

A fit's own residuals are of models that it has seen. The spread that a lane states is that of the folds, each
scored on the model that it left out: what a simulation of another model has to expect.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from .fit.base import FitResult, errors, spread_90
from .fit.moe import models_of, moe_regimes
from .publiclanes import DEVICES, EXPERT_LANES, Fold, PublicLane, folds
from .run import CalibrationRun

SOURCE: Final = "ai-dynamo/aiconfigurator@095f58a5"
RUN: Final = "public-tables"
TABLES: Final = Path(__file__).parents[2] / "shared" / "measured" / "kernels"


def published_fit(lane: PublicLane, folder: Path) -> FitResult:
    """Fit a lane to all its rows and state the residuals of models left out.

    Parameters
    ----------
    lane : an expert lane of the public tables
    folder : of the tables
    """
    table, _ = lane.read(folder)
    fit = lane.fit(table)
    left_out = list(folds(lane, table))
    versions = sorted(
        set(zip(table["framework"], table["framework_version"], table["kernel_source"], strict=True))
    )
    software = ", ".join(f"{name} {version}, {kernel}" for name, version, kernel in versions)
    notes = (software, f"{len(table)} rows of {len(set(models_of(table)))} models", left_out_line(left_out))
    return replace(fit, residual_sd=left_out_spread(left_out), notes=notes)


def left_out_spread(left_out: Sequence[Fold]) -> dict[str, float]:
    """Return the spread of log(predicted/measured) by regime over all folds [-]."""
    regimes = np.concatenate([moe_regimes(fold.rows) for fold in left_out])
    log_ratio = np.log(np.concatenate([fold.ratio for fold in left_out]))
    return {str(name): spread_90(log_ratio[regimes == name]) for name in np.unique(regimes)}


def left_out_line(left_out: Sequence[Fold]) -> str:
    """Return the errors over all folds in one line."""
    found = errors(np.concatenate([fold.ratio for fold in left_out]))
    names = {"mape": "MAPE", "median_ape": "median", "p90_ape": "p90"}
    return "left-out model " + ", ".join(f"{says} {100 * found[name]:.1f} %" for name, says in names.items())


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
    for lane in EXPERT_LANES:
        if lane.gpu == chosen.gpu and chosen.only in lane.name:
            fits.append(published_fit(lane, chosen.tables))
            said = f"fitted MAPE {100 * fits[-1].train['mape']:.1f} %; {fits[-1].notes[-1]}"
            sys.stderr.write(f"{lane.name}: {said}\n")
            run = CalibrationRun(RUN, DEVICES[chosen.gpu], SOURCE, tuple(fits))
            run.save(chosen.out)


if __name__ == "__main__":
    main()
