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
    draws: Annotated[
        int | None,
        typer.Option(
            "--draws",
            metavar="N",
            help="Run N times more with what is not known of the hardware drawn, for 90 % intervals (32).",
            show_default=False,
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", metavar="N", help="With --draws: processes; default: one a core."),
    ] = None,
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
        from ...sim.output.output import check_folder

        check_folder(out)
    if draws is not None or jobs is not None:
        _check_draws(draws, jobs)
    from ...sim.run import simulate as run
    from ...sim.scenario.resolve import resolve
    from ..render import render

    resolved = resolve(asked)
    with progress_bar(asked.name or "requests", quiet=quiet) as progress:
        result = run(resolved, keep_steps=out is not None and steps, progress=progress)
    if draws is not None:
        from ...sim.draws import run_draws, with_interval

        with progress_bar("draws", quiet=quiet) as progress:
            result = with_interval(result, run_draws(resolved, draws, jobs=jobs, progress=progress))
    summary = result.summary()
    if form is not Form.table:
        warn(result.record.warnings, quiet=quiet)
    emit(render(summary, form.value, color=color()))
    if out is not None:
        files = result.write(out)
        say(f"wrote {len(files)} files to {out}", quiet=quiet)
    if fail_on_slo and summary["slo"]["met"] is False:
        raise typer.Exit(SLO_MISSED)


def _check_draws(draws: int | None, jobs: int | None) -> None:
    """Refuse numbers of draws that cannot be before the run that comes first."""
    from ...sim.draws import check_draws

    if draws is None:
        raise UsageError("--jobs is for draws; add --draws 32")
    check_draws(draws, jobs)
