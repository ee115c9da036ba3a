"""Where the verbs of ``membound calibrate`` take their timings and their device from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...calibrate.table import KernelTable
    from ...hwmodels.device import DeviceProfile


def rows_to_fit(what: str, device: str | None) -> tuple[KernelTable, DeviceProfile, dict[str, Any]]:
    """Return the rows to fit, their device, and the environment where we timed them."""
    from ...calibrate.device import device_of, of_device
    from ...calibrate.errors import CalibrationError
    from ...calibrate.imports import import_table
    from ...calibrate.runfolder import read_run
    from ...hwmodels.device import load_device

    if Path(what).is_dir():
        found = read_run(what)
        return (
            found.fit,
            load_device(device) if device else device_of(found.environment),
            dict(found.environment),
        )
    if not Path(what).exists():
        raise CalibrationError(
            f"{what!r} is not there; allowed: the folder of a measuring run, or a kernel table"
        )
    if device is None:
        raise CalibrationError(f"--device is missing: whose timings are in {what!r}?")
    profile = load_device(device)
    return of_device(import_table(what).table, profile), profile, {}


def held_out(run: str, device: str | None) -> tuple[KernelTable, DeviceProfile]:
    """Return the points of a measuring run that no fit saw, and its device with the lanes that it gave."""
    from ...calibrate.device import device_of
    from ...calibrate.fitting import with_fits
    from ...calibrate.run import CalibrationRun
    from ...calibrate.runfolder import read_run
    from ...hwmodels.device import load_device

    found = read_run(run)
    profile = load_device(device) if device else device_of(found.environment)
    return found.held_out, with_fits(profile, CalibrationRun.load(run))


def measured(device: str | None, table: Path | None) -> tuple[KernelTable, DeviceProfile]:
    """Return the rows of a table that are of a device, and the device."""
    from ...calibrate.device import of_device
    from ...calibrate.errors import CalibrationError
    from ...calibrate.imports import import_table
    from ...hwmodels.device import load_device

    if device is None or table is None:
        raise CalibrationError("evaluate needs --device and --table, or the folder of a measuring run")
    profile = load_device(device)
    return of_device(import_table(table).table, profile), profile


def source_of(table: KernelTable) -> str:
    """Return where a table's rows come from: what they say themselves, else the file's name."""
    said = sorted({str(each).partition(":")[0] for each in table["source"] if each})
    return ", ".join(said[:3]) if said else Path(table.origin).name
