"""``membound explain``: what a scenario waits for, and what to change first."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from ...sim.studies.scaling import Scaling
from ..console import emit, progress_bar, say
from ..flags import ALL, UsageError, scenario_of, with_flags
from ..options import Address, Backend, Debug, Form, Format, Jobs, Quiet, ScenarioFile, Sets


@with_flags(*ALL)
def explain(
    given: dict[str, Any],
    scenario: ScenarioFile = None,
    candidate: Annotated[
        Path | None,
        typer.Argument(metavar="CANDIDATE", help="Another scenario: what lies between the two, one by one."),
    ] = None,
    sets: Sets = None,
    form: Format = Form.table,
    roofline: Annotated[
        bool, typer.Option("--roofline", help="Where its steps lie under the roofline, and larger batches.")
    ] = False,
    scale: Annotated[
        list[str] | None,
        typer.Option(
            "--scale",
            metavar="NUMBER",
            show_default=False,
            help="Scale a device number step by step instead (hbm_bandwidth, hbm_capacity, …) and say where that "
            "stops helping. Repeatable.",
        ),
    ] = None,
    factors: Annotated[
        str, typer.Option("--factors", metavar="X,Y,…", help="With --scale: factors of the number.")
    ] = "0.5,0.75,1,1.5,2,3",
    percent: Annotated[
        float, typer.Option("--percent", metavar="X", help="Numbers are made so much less and more.")
    ] = 10.0,
    metric: Annotated[
        str | None,
        typer.Option(
            "--metric",
            metavar="NAME",
            show_default=False,
            help="What to look at: ttft, tpot, itl, e2e, throughput, goodput, cost, or latency.ttft_s.p99, …; "
            "default: e2e, or throughput beyond the sustainable rate.",
        ),
    ] = None,
    requests: Annotated[
        int, typer.Option("--requests", metavar="N", help="Requests that every run serves: at most so many.")
    ] = 300,
    repeat: Annotated[
        int,
        typer.Option("--repeat", metavar="N", help="Move levers with N seeds: intervals of paired runs."),
    ] = 1,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="DIR", show_default=False, help="Where runs are kept; default: the user's cache."
        ),
    ] = None,
    jobs: Jobs = None,
    backend: Backend = "joblib",
    address: Address = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Say what a scenario waits for, and what to change first.

    Every device number, setting and number format is moved on its own and the same requests are served again. With a
    second scenario, what it has otherwise is applied one after the other. Runs are kept, so that repeats are quick.

    membound explain examples/demo-chat.yaml
    """
    if candidate is not None and (roofline or scale):
        raise UsageError(f"{'--roofline' if roofline else '--scale'} is of one scenario; leave CANDIDATE out")
    asked = scenario_of(scenario, given, sets or (), "explain")
    if roofline:
        from ...sim.studies.roofline import roofline as lie
        from ..render_roofline import render_roofline

        emit(render_roofline(lie(asked, requests=requests), form.value))
        return
    from ...sim.studies.explain import explain as move
    from ...sim.studies.scaling import scaling
    from ...sim.studies.waterfall import waterfall
    from ..render_explain import render_explanation, render_waterfall
    from ..render_scaling import render_scaling

    where: dict[str, Any] = {"requests": requests, "metric": metric, "folder": out}
    where |= {"backend": backend, "address": address, "jobs": jobs}
    if scale:
        steps = _factors(factors)
        curves: list[Scaling] = []
        for number in scale:
            with progress_bar(number, quiet=quiet) as progress:
                curves.append(scaling(asked, number, factors=steps, progress=progress, **where))
        emit(render_scaling(curves, form.value))
        return
    if candidate is None:
        with progress_bar("runs", quiet=quiet) as progress:
            levers = move(asked, percent=percent, repeat=repeat, progress=progress, **where)
        emit(render_explanation(levers, form.value))
        say(f"{levers.ran} runs done, {levers.found} kept from before", quiet=quiet)
        return
    other = scenario_of(candidate, given, sets or (), "explain")
    with progress_bar("runs", quiet=quiet) as progress:
        way = waterfall(asked, other, progress=progress, **where)
    emit(render_waterfall(way, form.value))
    say(f"{way.ran} runs done, {way.found} kept from before", quiet=quiet)


def _factors(text: str) -> list[float]:
    try:
        return [float(part.strip().removeprefix("x")) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"--factors {text}: no list of numbers; allowed: 0.5,1,2") from None
