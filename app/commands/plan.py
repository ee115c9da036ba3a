"""``membound plan``: which configuration serves a load within its SLO at the lowest cost."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..console import emit, progress_bar
from ..options import Debug, Form, Format, Quiet, Sets


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
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", metavar="N", help="Workers; default: one a core.", show_default=False),
    ] = None,
    backend: Annotated[
        str, typer.Option("--backend", metavar="NAME", help="Where runs happen: joblib (here), dask, ray.")
    ] = "joblib",
    address: Annotated[
        str | None,
        typer.Option(
            "--address", metavar="URL", help="Of a running Dask or Ray cluster; default: a local one."
        ),
    ] = None,
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
