"""``membound explain``: what a scenario waits for, and what to change first."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ..console import emit
from ..flags import ALL, scenario_of, with_flags
from ..options import Debug, Form, Format, Quiet, ScenarioFile, Sets


@with_flags(*ALL)
def explain(
    given: dict[str, Any],
    scenario: ScenarioFile = None,
    sets: Sets = None,
    form: Format = Form.table,
    roofline: Annotated[
        bool, typer.Option("--roofline", help="Where its steps lie under the roofline, and larger batches.")
    ] = False,
    requests: Annotated[
        int, typer.Option("--requests", metavar="N", help="Requests that are served: at most so many.")
    ] = 300,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Say what a scenario waits for, and what to change first.

    membound explain examples/demo-chat.yaml --roofline
    """
    asked = scenario_of(scenario, given, sets or (), "explain")
    from ...sim.studies.roofline import roofline as run
    from ..render_roofline import render_roofline

    emit(render_roofline(run(asked, requests=requests), form.value))
