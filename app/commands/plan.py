"""``membound plan``: which configuration serves a load within its SLO at the lowest cost."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..console import emit, progress_bar
from ..options import Address, Backend, Debug, Form, Format, Jobs, Quiet, Sets


def plan(
    file: Annotated[
        Path, typer.Argument(metavar="PLAN", help="Plan file (YAML): base, load, slo, candidates, prices.")
    ],
    sets: Sets = None,
    form: Format = Form.table,
    exhaustive: Annotated[
        bool, typer.Option("--exhaustive", help="Search also what cannot be cheaper than the best few.")
    ] = False,
    draws: Annotated[
        int, typer.Option("--draws", metavar="N", help="Draws of the hardware behind 'meets SLO'; 0: none.")
    ] = 16,
    jobs: Jobs = None,
    backend: Backend = "joblib",
    address: Address = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Find how many of which GPU, set up how, serve a load within its SLO at the lowest cost.

    Every combination of the candidates is a configuration. What does not fit or cannot be fast enough is left
    out by arithmetic; of the rest the highest sustainable rate of a replica is searched by simulation.

    membound plan examples/plan-chat.yaml
    """
    from ...sim.studies.capacity_plan import load_plan
    from ...sim.studies.plan import plan as run
    from ..render_plan import render_plan

    asked = load_plan(file, sets or ())
    with progress_bar(asked.name, quiet=quiet) as progress:
        found = run(
            asked,
            exhaustive=exhaustive,
            draws=draws,
            jobs=jobs,
            backend=backend,
            address=address,
            progress=progress,
        )
    emit(render_plan(found, form.value))
