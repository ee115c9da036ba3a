"""``membound validate --live``: the device at hand serves for real what the simulator predicts."""

from __future__ import annotations

import json

import typer

from ..console import emit, say
from ..options import Form
from .calibrate import seconds_of

BEYOND_BOUND = 4


def validate_live(device: str, budget: str, max_error: float | None, form: Form, quiet: bool) -> None:
    """Calibrate a device, predict two loads on it, serve them, and show both.

    Parameters
    ----------
    device, budget : where, and in what time
    max_error : exit with 4 where a figure's error is beyond it [-]
    form, quiet : how to print
    """
    from ...calibrate.live import run_live

    report = run_live(device, seconds_of(budget), say=lambda line: say(line, quiet=quiet))
    if form is Form.table:
        emit(report.describe() + "\n")
    elif form is Form.json:
        emit(json.dumps(report.to_dict(), indent=2) + "\n")
    else:
        emit(report.to_csv())
    if max_error is not None and not report.within(max_error):
        say(f"a figure is off by more than --max-error {max_error:g}", quiet=quiet)
        raise typer.Exit(BEYOND_BOUND)
