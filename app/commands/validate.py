"""``membound validate``: served runs that others measured, against the same runs simulated."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..console import emit, progress_bar, say
from ..flags import UsageError
from ..options import Debug, Form, Format, Quiet, Sets

if TYPE_CHECKING:
    from ...calibrate.serving.compare import RunErrors
    from ...calibrate.serving.run import ServedRun, Skipped

BEYOND_BOUND = 4


def validate(
    table: Annotated[
        Path | None,
        typer.Argument(
            metavar="TABLE",
            help="Table of served runs or of TTFT/TPOT points (CSV), or with --scenario a load generator's result.",
            show_default=False,
        ),
    ] = None,
    splits: Annotated[
        Path | None,
        typer.Option(
            "--splits", metavar="FILE", help="Which part each run is in; default: splits.csv beside it."
        ),
    ] = None,
    part: Annotated[
        list[str] | None,
        typer.Option("--part", metavar="PART", help="Only fit, judge, replicate or exclude. Repeatable."),
    ] = None,
    gpu: Annotated[
        list[str] | None, typer.Option("--gpu", metavar="NAME", help="Only runs on this GPU. Repeatable.")
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option("--model", metavar="NAME", help="Only runs of this model. Repeatable.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", metavar="N", min=1, help="Only the first N rows of those.")
    ] = None,
    scenario: Annotated[
        Path | None,
        typer.Option(
            "--scenario", metavar="FILE", help="What served the requests of a load generator's result."
        ),
    ] = None,
    monitoring: Annotated[
        Path | None,
        typer.Option(
            "--monitoring",
            metavar="FILE",
            help="Counters of dcgmi, dcgm-exporter, nvidia-smi or a torch profile, beside the scenario's.",
        ),
    ] = None,
    sets: Sets = None,
    draws: Annotated[
        int,
        typer.Option(
            "--draws", metavar="N", min=0, help="Draws for 90 % intervals and their coverage; slow (32)."
        ),
    ] = 0,
    max_error: Annotated[
        float | None,
        typer.Option(
            "--max-error",
            metavar="X",
            min=0.0,
            help="Exit with 4 where a median error of a mean latency or of throughput is above this (0.05).",
            show_default=False,
        ),
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", metavar="N", min=1, help="Processes.")] = 1,
    live: Annotated[
        bool, typer.Option("--live", help="Serve loads for real on the device at hand instead; needs torch.")
    ] = False,
    device: Annotated[
        str, typer.Option("--device", metavar="NAME", help="With --live: cpu (one thread), cuda:0.")
    ] = "cpu",
    budget: Annotated[
        str, typer.Option("--budget", metavar="TIME", help="With --live: time for all of it: 120s, 5m.")
    ] = "120s",
    form: Format = Form.table,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Predict served runs that were measured, and say how far off the predictions are.

    Each row of the table becomes a scenario that is simulated, request by request where there is a file of
    requests, or is skipped with the reason:

    membound validate runs.csv --part judge --format json

    With --monitoring, what your tools show stands beside what the scenario says:

    membound validate --monitoring dmon.txt server.yaml

    With --live, a small real model serves two loads here, beside their prediction:

    membound validate --live --device cpu --budget 120s
    """
    if live:
        from .live import validate_live

        if table is not None:
            raise UsageError("--live serves loads of its own; leave the table out")
        validate_live(device, budget, max_error, form, quiet)
        return
    if monitoring is not None:
        _beside(monitoring, scenario or table, sets or [], form)
        return
    if table is None:
        raise UsageError("validate needs a table of runs, or a load generator's result and --scenario")
    runs, skipped = _load(table, splits, part or [], gpu or [], model or [], limit, scenario, sets or [])
    answered, failed = _play(runs, jobs, draws, quiet)
    from ..render_validate import render_validation

    emit(render_validation(answered, [*skipped, *failed], form.value))
    _check(answered, max_error, quiet)


def _beside(file: Path, scenario: Path | None, sets: list[str], form: Form) -> None:
    """Print counters of a monitoring tool beside those of a simulated scenario."""
    if scenario is None:
        raise UsageError("--monitoring needs the scenario that was served: --monitoring FILE SCENARIO")
    from ...calibrate.monitoring import beside, read_monitoring
    from ...sim.run import simulate
    from ...sim.scenario.load import load_scenario
    from ..render_validate import render_monitoring

    measured = read_monitoring(file)
    found = beside(measured, simulate(load_scenario(scenario, sets)).summary())
    emit(render_monitoring(found, form.value))


def _load(
    table: Path,
    splits: Path | None,
    parts: list[str],
    gpus: list[str],
    models: list[str],
    limit: int | None,
    scenario: Path | None,
    sets: list[str],
) -> tuple[list[ServedRun], list[Skipped]]:
    if scenario is not None:
        from ...calibrate.serving.exports import served_export
        from ...sim.scenario.load import load_scenario

        return [served_export(table, load_scenario(scenario, sets))], []
    if sets:
        raise UsageError("--set changes the scenario of a load generator's result; add --scenario")
    from ...calibrate.serving.load import Choice, load_runs

    return load_runs(table, Choice(parts, gpus, models, limit), splits)


def _play(runs: list[ServedRun], jobs: int, draws: int, quiet: bool) -> tuple[list[RunErrors], list[Skipped]]:
    from ...calibrate.serving.compare import compare
    from ...calibrate.serving.play import play_all
    from ...calibrate.serving.run import Skipped

    if draws:
        from ...sim.draws import check_draws

        check_draws(draws)
    answered: list[RunErrors] = []
    failed: list[Skipped] = []
    with progress_bar("runs", quiet=quiet) as progress:
        for done, (run, outcome) in enumerate(play_all(runs, jobs=jobs, draws=draws), start=1):
            if isinstance(outcome, Skipped):
                failed.append(outcome)
            else:
                answered.append(compare(run, outcome))
            if progress is not None:
                progress(done, len(runs))
    return answered, failed


def _check(answered: list[RunErrors], max_error: float | None, quiet: bool) -> None:
    """Leave with 4 where the median of an error is above the bound, or nothing could be judged by it."""
    if max_error is None:
        return
    from ...calibrate.serving.summary import totals

    found = totals(answered)["median_abs_error"]
    judged = {name: found[name] for name in ("ttft_mean", "tpot_mean", "e2e_mean", "throughput")}
    above = [
        f"{name} {value:.3g}" for name, value in judged.items() if value is not None and value > max_error
    ]
    if not answered or above:
        what = ", ".join(above) or "no run was answered"
        say(f"beyond --max-error {max_error:g}: {what}", quiet=quiet)
        raise typer.Exit(BEYOND_BOUND)
