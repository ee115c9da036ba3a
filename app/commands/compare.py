"""``membound compare``: scenarios side by side, on the same requests and random numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..console import color, emit, progress_bar, warn
from ..flags import UsageError
from ..options import Debug, Form, Format, Jobs, Quiet, Sets


def compare(
    scenarios: Annotated[
        list[Path],
        typer.Argument(
            metavar="SCENARIO...", help="Scenario files (YAML); the first is compared with the others."
        ),
    ],
    sets: Sets = None,
    form: Format = Form.table,
    repeat: Annotated[
        int,
        typer.Option(
            "--repeat", metavar="N", help="Run each with N seeds: means, and intervals of paired runs."
        ),
    ] = 1,
    draws: Annotated[
        int,
        typer.Option(
            "--draws", metavar="N", help="Run N draws of what is not known of the hardware, the same for all."
        ),
    ] = 0,
    jobs: Jobs = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Run scenarios on the same random numbers and put their figures side by side.

    Every figure has its change against the first scenario. `--set` changes a leaf of all of them.

    membound compare examples/levers-batching/*.yaml
    """
    from ...sim.scenario import load_scenario
    from ...sim.studies.compare import compare as run
    from ..render_compare import labels_of, render_comparison

    if len(scenarios) < 2:
        raise UsageError("compare needs two scenario files or more; for one: membound simulate SCENARIO")
    asked = [load_scenario(path, sets or ()) for path in scenarios]
    labels = labels_of([str(path) for path in scenarios], [each.name for each in asked])
    if len(set(labels)) < len(labels):
        twice = next(label for label in labels if labels.count(label) > 1)
        raise UsageError(f"{twice} is given twice")
    with progress_bar("runs", quiet=quiet) as progress:
        found = run(
            dict(zip(labels, asked, strict=True)), repeat=repeat, draws=draws, jobs=jobs, progress=progress
        )
    if form is not Form.table:
        warn((f"{point.label}: {point.error}" for point in found.points if point.error), quiet=quiet)
    emit(render_comparison(found, form.value, color=color()))
