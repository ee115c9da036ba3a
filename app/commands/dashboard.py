"""``membound dashboard``: the pages, served to this machine alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..console import say
from ..options import Debug, Quiet

PORT = 8501


def dashboard(
    scenario: Annotated[
        Path | None,
        typer.Argument(
            metavar="SCENARIO", help="Where the levers start: a scenario file (YAML).", show_default=False
        ),
    ] = None,
    port: Annotated[
        int,
        typer.Option(
            "--port", metavar="N", min=0, max=65535, help="Port; 0, or one that is taken: the next free one."
        ),
    ] = PORT,
    store: Annotated[
        Path | None,
        typer.Option(
            "--store",
            metavar="DIR",
            show_default=False,
            help="Where runs are kept, and found by membound sweep --out DIR; default: the user's cache.",
        ),
    ] = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Open the dashboard: move levers and see what each changes, and send the link.

    It is served on this machine alone (127.0.0.1), needs no network and sends nothing anywhere.

    membound dashboard examples/demo-chat.yaml
    """
    from ..dashboard.serve import check_installed, serve

    check_installed()
    if scenario is not None:
        from ...sim.scenario import load_scenario

        load_scenario(scenario)
    serve(
        scenario,
        port,
        store,
        told=lambda address: say(f"dashboard at {address}   (Ctrl+C ends it)", quiet=quiet),
    )
