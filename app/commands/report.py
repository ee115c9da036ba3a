"""``membound report``: a result directory as one page with charts, or as pictures."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..console import emit
from ..options import Debug

if TYPE_CHECKING:
    from ...sim.output.view import View

PAGE = "report.html"


class Ground(StrEnum):
    """What pictures are drawn on."""

    light = "light"
    dark = "dark"


def report(
    folder: Annotated[
        Path, typer.Argument(metavar="RESULT_DIR", help="What `membound simulate --out` wrote.")
    ],
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help=f"Where the page goes; default: {PAGE} in RESULT_DIR."),
    ] = None,
    png: Annotated[
        Path | None, typer.Option("--png", metavar="DIR", help="Write every chart as a PNG there instead.")
    ] = None,
    svg: Annotated[
        Path | None, typer.Option("--svg", metavar="DIR", help="Write every chart as an SVG there instead.")
    ] = None,
    theme: Annotated[
        Ground, typer.Option("--theme", help="Ground of PNG and SVG; the page has both.")
    ] = Ground.light,
    roofline: Annotated[
        bool, typer.Option("--roofline", help="Run some of its requests again for roofline and batch curve.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Show a result as one page with charts: offline, light and dark, ready to send.

    membound simulate examples/demo-chat.yaml --out result

    membound report result
    """
    from ..charts.page import require_charts

    require_charts()
    from ...sim.output.view import read_view

    view = read_view(folder)
    roof = _roofline(folder) if roofline else None
    if png is None and svg is None:
        emit(_write_page(view, folder, html or folder / PAGE, roof))
        return
    for target, ending in ((png, "png"), (svg, "svg")):
        if target is not None:
            emit(_write_pictures(view, target, ending, theme, roof))
    if html is not None:
        emit(_write_page(view, folder, html, roof))


def _roofline(folder: Path) -> dict[str, Any]:
    from ...sim.scenario import load_scenario
    from ...sim.studies.roofline import roofline

    return roofline(load_scenario(folder / "scenario.yaml")).to_dict()


def _write_page(view: View, folder: Path, target: Path, roof: dict[str, Any] | None) -> str:
    from ..charts.report_page import report_page
    from ..render import render_table, title_of

    scenario = view.summary["scenario"] or {}
    name = scenario.get("name") or folder.resolve().name
    text = report_page(view, str(name), title_of(view.summary), render_table(view.summary), roof)
    _publish(target, text.encode())
    return f"wrote {target}\n"


def _write_pictures(view: View, folder: Path, ending: str, theme: Ground, roof: dict[str, Any] | None) -> str:
    from ..charts.picture import picture
    from ..charts.report_page import charts

    names = [
        name
        for name, chart in charts(view, roof)
        if _publish(folder / f"{name}.{ending}", picture(chart, ending, theme.value))
    ]
    return f"wrote {len(names)} charts to {folder}: {', '.join(names)}\n"


def _publish(target: Path, content: bytes) -> bool:
    """Write a file under a temporary name and rename it."""
    from ...sim.output.output import OutputError

    beside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        beside.write_bytes(content)
        beside.replace(target)
    except OSError as error:
        raise OutputError(f"{str(target)!r} cannot be written: {error.strerror}") from error
    return True
