"""``membound size``: what fits, in bytes, blocks, tokens and requests."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..console import color, emit, warn
from ..flags import SERVING, UsageError, scenario_of, with_flags
from ..options import Debug, Form, Format, Quiet, ScenarioFile, Sets

if TYPE_CHECKING:
    from ...hwmodels.memorylog import PrintedMemory


@with_flags(*SERVING)
def size(
    given: dict[str, Any],
    scenario: ScenarioFile = None,
    sets: Sets = None,
    form: Format = Form.table,
    log: Annotated[
        str | None,
        typer.Option(
            "--log",
            metavar="FILE",
            help="The engine's own start-up log; what it printed replaces estimates. - is stdin.",
        ),
    ] = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Size the KV pool term by term, and say how sure that is.

    An engine version that has no profile is sized by the memory rules of that version:

    membound size --device h100_sxm --model llama-3.1-70b --engine vllm-0.8.5 -tp 4
    """
    asked = scenario_of(scenario, given, sets or (), "size")
    printed = _printed(log) if log is not None else None
    from ...sim.sizing import size as sized
    from ..render_size import render_size

    report = sized(asked, printed)
    if form is not Form.table:
        warn(report.pool.warnings, quiet=quiet)
    emit(render_size(report, form.value, color=color()))


def _printed(log: str) -> PrintedMemory:
    """Return the figures in a log."""
    from ...hwmodels.memorylog import parse_log

    try:
        text = sys.stdin.read() if log == "-" else Path(log).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UsageError(f"--log {log!r} cannot be read: {error.strerror}") from None
    return parse_log(text)
