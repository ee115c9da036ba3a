"""``membound trace``: look at a file of requests before replaying it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ..console import emit, warn
from ..help import GroupedCommand
from ..options import Debug, Form, Format, Quiet

trace = typer.Typer(help="Look at files of requests.", no_args_is_help=True, rich_markup_mode=None)


@trace.command(cls=GroupedCommand)
def inspect(
    file: Annotated[str, typer.Argument(metavar="FILE", help="CSV, JSON lines or Parquet, gzipped or not.")],
    form: Format = Form.table,
    trace_format: Annotated[
        str,
        typer.Option("--trace-format", metavar="NAME", help="How to read it; auto tells by header or keys."),
    ] = "auto",
    limit: Annotated[
        str | None, typer.Option(metavar="N", help="Only the earliest so many requests.")
    ] = None,
    time_scale: Annotated[
        str | None,
        typer.Option(metavar="X", help="Factor on the gaps between arrivals; 0.5 replays twice as fast."),
    ] = None,
    part: Annotated[
        str | None, typer.Option(metavar="I", help="Which run of a report that holds several, from 0.")
    ] = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Say what a trace holds before replaying it.

    Format, span, rate, lengths, what was left out, and how much of its prompts repeat.
    """
    from ...sim.workload.trace.formats import Wanted
    from ...sim.workload.trace.read import read_trace
    from ..render_trace import render_trace

    asked = _asked(file, trace_format, limit, time_scale, part)
    wanted = Wanted(asked.path, asked.format, needs_arrival=False, part=asked.part)
    workload = read_trace(wanted, time_scale=asked.time_scale, limit=asked.limit)
    if form is not Form.table:
        warn(workload.report.warnings, quiet=quiet)
    emit(render_trace(workload, form.value))


def _asked(file: str, trace_format: str, limit: str | None, time_scale: str | None, part: str | None) -> Any:
    """Return the ``workload.trace`` section that reads the file, checked as in a scenario."""
    from ...sim.scenario import Assignment, parse_scenario

    wanted = {
        "format": (trace_format, "--trace-format"),
        "limit": (limit, "--limit"),
        "time_scale": (time_scale, "--time-scale"),
        "part": (part, "--part"),
    }
    sets = [Assignment("workload.trace.path", file, file)]
    sets += [
        Assignment(f"workload.trace.{key}", value, f"{option} {value}")
        for key, (value, option) in wanted.items()
        if value is not None
    ]
    workload = parse_scenario({"device": "h100_sxm", "model": "llama-3.1-8b"}, sets).workload
    assert workload is not None
    return workload.trace
