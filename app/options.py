"""Options that several verbs share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Form(StrEnum):
    """How a result is written."""

    table = "table"
    json = "json"
    csv = "csv"


Format = Annotated[Form, typer.Option("--format", help="How the result is written to stdout.")]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Set any leaf of the scenario: --set scheduler.max_num_seqs=64. Repeatable.",
    ),
]


def _jobs(value: int | None) -> int | None:
    """Refuse a number of workers that cannot be, also where nothing is left to run."""
    if value is not None:
        from ..sim.studies.backends import check_jobs

        check_jobs(value)
    return value


Jobs = Annotated[
    int | None,
    typer.Option(
        "--jobs", metavar="N", help="Workers; default: one a core.", show_default=False, callback=_jobs
    ),
]
Backend = Annotated[
    str, typer.Option("--backend", metavar="NAME", help="Where runs happen: joblib (here), dask, ray.")
]
Address = Annotated[
    str | None,
    typer.Option("--address", metavar="URL", help="Of a running Dask or Ray cluster; default: a local one."),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Nothing on stderr but errors.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
ScenarioFile = Annotated[
    Path | None,
    typer.Argument(metavar="SCENARIO", help="Scenario file (YAML); without one, name --device and --model."),
]
