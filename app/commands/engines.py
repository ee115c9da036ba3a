"""``membound engines``: the serving engine versions at hand, or everything one decides."""

from __future__ import annotations

from typing import Annotated

import typer

from ..console import emit
from ..flags import complete_engines
from ..options import Debug, Form, Format


def engines(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="Id, alias or path of one engine.", autocompletion=complete_engines
        ),
    ] = None,
    form: Format = Form.table,
    debug: Debug = False,
) -> None:
    """List the engine versions, or show what one decides.

    With a name: flag defaults, captured graphs, step times and memory rules, with their sources.
    """
    from ...hwmodels.engine import list_engines, load_engine
    from ..render_engines import render_engine, render_engines

    if name is None:
        emit(render_engines([load_engine(each) for each in list_engines()], form.value))
    else:
        emit(render_engine(load_engine(name), form.value))
