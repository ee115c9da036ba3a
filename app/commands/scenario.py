"""``membound scenario``: write, show and describe scenario files."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from ..console import emit, say
from ..flags import ALL, UsageError, scenario_of, with_flags
from ..help import GroupedCommand
from ..options import Debug, Quiet, ScenarioFile, Sets

scenario = typer.Typer(
    help="Write, show and describe scenario files.", no_args_is_help=True, rich_markup_mode=None
)


class Text(StrEnum):
    """How a scenario is written."""

    yaml = "yaml"
    json = "json"


@scenario.command(cls=GroupedCommand)
def init(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="Where to write it; stdout without one.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Write a commented scenario to start from."""
    from ...sim.scenario import TEMPLATE

    if file is None:
        emit(TEMPLATE)
        return
    if file.exists() and not force:
        raise UsageError(f"{str(file)!r} exists; allowed: another name, or --force to replace it")
    try:
        file.write_text(TEMPLATE, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{str(file)!r} cannot be written: {error.strerror}") from None
    say(f"wrote {file}; run it with: membound simulate {file}", quiet=quiet)


@scenario.command(cls=GroupedCommand)
@with_flags(*ALL)
def show(
    given: dict[str, Any],
    scenario: ScenarioFile = None,
    sets: Sets = None,
    resolved: Annotated[
        bool, typer.Option("--resolved", help="Replace every auto by what this engine takes on this device.")
    ] = False,
    form: Annotated[Text, typer.Option("--format", help="How it is written.")] = Text.yaml,
    debug: Debug = False,
) -> None:
    """Print a scenario with every default spelled out.

    Paths in it start from the working folder.
    """
    asked = scenario_of(scenario, given, sets or (), "scenario show")
    if resolved:
        from ...sim.scenario import resolve

        asked = resolve(asked, "size").scenario
    if form is Text.json:
        from ...sim.output.output import to_json

        emit(to_json(asked.to_dict()))
    else:
        emit(asked.to_yaml())


@scenario.command(cls=GroupedCommand)
def schema(debug: Debug = False) -> None:
    """Print the JSON schema of a scenario file, for editors."""
    from ...sim.output.output import to_json
    from ...sim.scenario import json_schema

    emit(to_json(json_schema()))
