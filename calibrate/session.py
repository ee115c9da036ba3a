"""Time a device and fit it in one call: what ``membound calibrate measure`` and ``fit`` do one after the other."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from .device import device_of
from .fitting import fit_table
from .measure import measure
from .run import FIT, CalibrationRun
from .runfolder import read_run

if TYPE_CHECKING:
    from .measure import Backend


def calibrate(
    device: str = "cpu",
    *,
    out: str | os.PathLike[str],
    budget_s: float = 120.0,
    seed: int = 0,
    say: Callable[[str], None] | None = None,
    backend: Backend | None = None,
) -> CalibrationRun:
    """Time kernels on a device and fit its lanes.

    Parameters
    ----------
    device : ``cpu`` (one thread), ``cuda`` or ``cuda:1``
    out : folder of the run, gone on with if it holds one; the fits are saved there, too
    budget_s : time for the timings; making a plan and fitting take more [s]
    seed : of the shapes that are chosen
    say : takes a line of progress now and then; default: standard error
    backend : device to time instead of torch's

    Raises
    ------
    KernelError : torch is not installed, or there is no such device
    CalibrationError : a budget that is not positive, a folder with another device's run, too few timings
    """
    measure(device, budget_s, out, seed=seed, say=say, backend=backend)
    found = read_run(out)
    name = Path(out).resolve().name
    run = fit_table(
        found.fit,
        device_of(found.environment),
        run_id=name,
        source=f"timings of run {name} on this machine",
        frozen=False,
        environment=dict(found.environment),
    )
    run.save(Path(out) / FIT)
    return run
