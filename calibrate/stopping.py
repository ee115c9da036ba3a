"""When a lane has been timed enough: fits of what is there no longer get better on the points that they do not see.

A few times in a run every lane is fitted on its points so far and held against its held-out ones. A lane whose error
has not fallen by half a point in the last two checks is done: its other points are left out. The points of other
lanes that would not have fitted the budget get their time, and where there are none the run ends sooner. Checks are
appended to the run like timings, so that a run that goes on knows them, and their time counts against the budget.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np

from ..hwmodels.device import DeviceProfile
from .device import device_of
from .fit.base import errors
from .fitting import fit_table, lanes_in, with_fits
from .predict import predict_us
from .run import CalibrationRun
from .runfolder import read_run
from .table import KernelTable

CHECKS: Final = (0.4, 0.55, 0.7, 0.85)
"""Shares of the budget after which lanes are looked at."""
LAST: Final = 2
"""Checks over which an error must have fallen."""
IMPROVED: Final = 0.005
"""By how much the mean absolute error on held-out points must have fallen [-]."""
FEWEST_HELD_OUT: Final = 5
"""A lane with fewer held-out points so far is not looked at."""
SHARE: Final = 0.05
"""Most of the budget that the checks may take together [-]."""


def checks_due(records: Iterable[Mapping[str, Any]], spent_s: float, budget_s: float) -> bool:
    """Tell whether lanes should be looked at now.

    Parameters
    ----------
    records : of the run so far
    spent_s, budget_s : time of the run so far, and of all of it [s]

    Examples
    --------
    >>> checks_due([], 7.0, 20.0), checks_due([], 8.0, 20.0)
    (False, True)
    >>> checks_due([{"check": {}, "wall_s": 0.1}], 9.0, 20.0)
    False
    """
    made = [record["wall_s"] for record in records if "check" in record]
    passed = sum(spent_s >= share * budget_s for share in CHECKS)
    affordable = not made or sum(made) + made[-1] <= SHARE * budget_s
    return passed > len(made) and affordable


def held_out_errors(folder: str | os.PathLike[str], lanes: Iterable[str]) -> dict[str, float]:
    """Return the mean absolute error of each lane's fit on its held-out points so far [-].

    Parameters
    ----------
    folder : of the run
    lanes : operation, kernel and dtype, joined by ``/``; those that cannot be fitted yet are missing in the result
    """
    run = read_run(folder)
    try:
        device = device_of(run.environment)
        fits = fit_table(run.fit, device, run_id="check", source="", frozen=False)
        profile = with_fits(device, fits)
        found = {lane: _error(profile, fits, _of(run.held_out, lane)) for lane in lanes}
    except ValueError:  # a GPU that the catalogue lacks, or nothing to fit yet: never a reason to stop timing
        return {}
    return {lane: error for lane, error in found.items() if error is not None}


def settled(history: list[float]) -> bool:
    """Tell whether a lane's error has stopped falling.

    >>> settled([0.10, 0.07, 0.06]), settled([0.10, 0.098, 0.097]), settled([0.10, 0.10])
    (False, True, False)
    """
    return len(history) > LAST and min(history[:-LAST]) - min(history[-LAST:]) <= IMPROVED


def settled_lanes(records: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return the lanes of a run that need no more points, each with its last error [-]."""
    history: dict[str, list[float]] = {}
    for record in records:
        for lane, error in record.get("check", {}).items():
            history.setdefault(lane, []).append(error)
    return {lane: found[-1] for lane, found in history.items() if settled(found)}


def _of(table: KernelTable, lane: str) -> KernelTable:
    op, kernel, dtype = lane.split("/")
    return table.only(op=op, kernel_source=kernel, dtype=dtype)


def _error(device: DeviceProfile, fits: CalibrationRun, held_out: KernelTable) -> float | None:
    """Return the error of a lane that was fitted; None where it was not, or has too few points."""
    own = [rows for family, name, rows in lanes_in(held_out) if fits.has(family, name)]
    ratio = (
        np.concatenate([predict_us(device, rows) / rows.latency_us for rows in own]) if own else np.empty(0)
    )
    return errors(ratio)["mape"] if len(ratio) >= FEWEST_HELD_OUT else None
