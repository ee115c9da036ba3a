"""``membound sweep``: many runs of one scenario with some leaves varied."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..console import emit, progress_bar, say, warn
from ..flags import UsageError
from ..options import Address, Backend, Debug, Form, Format, Jobs, Quiet, Sets

FAILED = 1


def sweep(
    study: Annotated[
        Path, typer.Argument(metavar="STUDY", help="Study file (YAML): base, over, points, random, repeat.")
    ],
    sets: Sets = None,
    form: Format = Form.table,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            show_default=False,
            help="Where runs are kept; default: a folder called after the study, here.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be run, and run nothing.")
    ] = False,
    part: Annotated[
        str, typer.Option("--slice", metavar="K/N", help="Run the k-th of n slices of the points.")
    ] = "1/1",
    jobs: Jobs = None,
    backend: Backend = "joblib",
    address: Address = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Run a scenario over a grid, a list or a draw of settings, and keep every run.

    A run that is kept is not done again: stop at any time, start again, or change the study, and only what is
    missing is run. Runs are Parquet files, one row each, under DIR/runs.
    """
    from ...sim.studies.store import POINTS, Store
    from ...sim.studies.study import load_study
    from ...sim.studies.sweep import look_ahead
    from ...sim.studies.sweep import sweep as run
    from ..render_sweep import render_outlook, render_sweep

    plan = load_study(study, sets or ())
    folder = out or Path(f"{study.stem}-results")
    number = _slice(part)
    if dry_run:
        emit(render_outlook(look_ahead(plan, Store(folder), number), form.value))
        return
    with progress_bar(plan.name, quiet=quiet) as progress:
        found = run(plan, folder, part=number, backend=backend, address=address, jobs=jobs, progress=progress)
    emit(render_sweep(found, form.value, str(folder / POINTS)))
    if form is not Form.table:
        warn(dict.fromkeys(point.error for point in found.points if point.error), quiet=quiet)
    say(f"{found.ran} runs done, {found.found} found in {folder}", quiet=quiet)
    if any(point.error and not point.summary["verdict"]["sentence"] for point in found.points):
        raise typer.Exit(FAILED)


def _slice(text: str) -> tuple[int, int]:
    number, slash, count = text.partition("/")
    if not (slash and text.isascii() and number.isdigit() and count.isdigit()):
        raise UsageError(f"--slice {text}: not a slice; allowed: 3/16 for the third of sixteen")
    return int(number), int(count)
