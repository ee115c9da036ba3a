"""The ``membound`` command: verbs, and every failure as one line and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from .commands.calibrate import calibrate
from .commands.compare import compare
from .commands.dashboard import dashboard
from .commands.devices import devices
from .commands.engines import engines
from .commands.explain import explain
from .commands.models import models
from .commands.plan import plan
from .commands.report import report as report_result
from .commands.scenario import scenario
from .commands.simulate import simulate
from .commands.size import size
from .commands.sweep import sweep
from .commands.trace import trace
from .commands.validate import validate
from .console import any_encoding, emit
from .errors import one_line_warnings, report
from .help import GroupedCommand

INTERRUPTED = 130

app = typer.Typer(
    name="membound",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
    epilog="Exit codes: 0 ok, 1 the run failed, 2 bad usage or input, 3 an SLO was missed (--fail-on-slo), "
    "4 an error bound was exceeded (validate --max-error).",
)
for verb in (simulate, size, compare, sweep, plan, explain, validate, dashboard, devices, models, engines):
    app.command(cls=GroupedCommand)(verb)
app.command("report", cls=GroupedCommand)(report_result)
app.add_typer(calibrate, name="calibrate")
app.add_typer(trace, name="trace")
app.add_typer(scenario, name="scenario")


def _print_version(wanted: bool) -> None:
    if wanted:
        from .. import __version__

        emit(f"membound {__version__}\n")
        raise typer.Exit


@app.callback()
def membound(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Is the GPU computing, or starving for data? Simulate LLM serving and see where every second goes."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Parameters
    ----------
    argv : words after the program's name; None takes those of the process
    """
    words = list(sys.argv[1:] if argv is None else argv)
    any_encoding()
    one_line_warnings()
    try:
        code = app(args=words, prog_name="membound", standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except Exception as error:
        return report(error, debug="--debug" in words)
    if code == INTERRUPTED:
        sys.stderr.write("error: interrupted\n")
    return code if isinstance(code, int) else 0


if __name__ == "__main__":
    sys.exit(main())
