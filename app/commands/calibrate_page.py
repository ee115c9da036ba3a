"""``membound calibrate report --html``: a calibration as one page with charts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...calibrate.residuals import Role
    from ...calibrate.run import CalibrationRun
    from ...calibrate.table import KernelTable
    from ...hwmodels.device import DeviceProfile

_NO_ROWS = "No charts: the timings are not in this run; name their table with --table FILE."


def write_page(
    run: CalibrationRun, target: Path, folder: Path, table: Path | None, device: str | None
) -> str:
    """Write the page of a run and return what to say of it.

    Parameters
    ----------
    run : the fits
    target : where the page goes
    folder : where the fits were read from: of a measuring run, it has the timings too
    table : timings, where the fits are of a table
    device : whose datasheet; default: the run's
    """
    from ..charts.page import require_charts

    require_charts()
    from ...calibrate.residuals import residuals_of
    from ..charts.calibration_page import calibration_page

    profile = _profile(run, device)
    rows = _rows(folder, table, profile)
    note = "" if rows else _NO_ROWS
    text = calibration_page(run, profile.name, residuals_of(run, profile, rows), note)
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    target.parent.mkdir(parents=True, exist_ok=True)
    beside.write_text(text, encoding="utf-8")
    beside.replace(target)
    return "".join(f"{line}\n" for line in (f"wrote {target}: {len(run.fits)} lanes", note) if line)


def _profile(run: CalibrationRun, device: str | None) -> DeviceProfile:
    from ...calibrate.device import device_of
    from ...hwmodels.device import load_device

    if device is not None:
        return load_device(device)
    return device_of(run.environment) if run.environment else load_device(run.device)


def _rows(folder: Path, table: Path | None, device: DeviceProfile) -> dict[Role, KernelTable]:
    """Return the timings by role: of a table that is named, else of the run's own folder, else none."""
    from ...calibrate.device import of_device
    from ...calibrate.imports import import_table
    from ...calibrate.residuals import by_split
    from ...calibrate.runfolder import POINTS, read_run

    if table is not None:
        return by_split(of_device(import_table(table).table, device))
    if (folder / POINTS).is_file():
        measured = read_run(folder)
        return {"fitted": measured.fit, "held out": measured.held_out}
    return {}
