"""``membound simulate``: run a scenario and say where the time went."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..console import color, emit, progress_bar, say, warn
from ..flags import ALL, UsageError, scenario_of, with_flags
from ..options import Debug, Form, Format, Quiet, ScenarioFile, Sets

SLO_MISSED = 3


@with_flags(*ALL)
def simulate(
    given: dict[str, Any],
    scenario: ScenarioFile = None,
    sets: Sets = None,
    form: Format = Form.table,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="DIR", help="Also write the result directory: summary, requests, steps."
        ),
    ] = None,
    steps: Annotated[
        bool, typer.Option("--steps/--no-steps", help="With --out: write steps.parquet, one row a step.")
    ] = True,
    fail_on_slo: Annotated[
        bool, typer.Option("--fail-on-slo", help="Exit with 3 where the SLO is missed.")
    ] = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Run a scenario step by step and say where the time went.

    One model on one GPU, or on a group of them, serves the load of a scenario file. Without a file it
    serves the chat load of `membound scenario init`:

    membound simulate --device h100_sxm --model llama-3.1-8b --request-rate 9
    """
    asked = scenario_of(scenario, given, sets or (), "simulate")
    if fail_on_slo and not (asked.slo and asked.slo.classes):
        raise UsageError("--fail-on-slo needs thresholds: --set slo.classes.default.ttft_s=500ms")
    if out is not None:
        from ...sim.output import check_folder

        check_folder(out)
    from ...sim.run import simulate as run
    from ..render import render

    with progress_bar(asked.name or "requests", quiet=quiet) as progress:
        result = run(asked, keep_steps=out is not None and steps, progress=progress)
    summary = result.summary()
    if form is not Form.table:
        warn(result.record.warnings, quiet=quiet)
    emit(render(summary, form.value, color=color()))
    if out is not None:
        files = result.write(out)
        say(f"wrote {len(files)} files to {out}", quiet=quiet)
    if fail_on_slo and summary["slo"]["met"] is False:
        raise typer.Exit(SLO_MISSED)
