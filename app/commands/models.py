"""``membound models``: the models at hand, or what one is made of."""

from __future__ import annotations

from typing import Annotated

import typer

from ..console import emit
from ..flags import complete_models
from ..options import Debug, Form, Format


def models(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="Id, Hugging Face name, or path of a config.json.",
            autocompletion=complete_models,
        ),
    ] = None,
    form: Format = Form.table,
    debug: Debug = False,
) -> None:
    """List the bundled models, or take one apart.

    With a name: parameters part by part, layers and their matrices, KV cache per token.
    """
    from ...hwmodels.model import list_models, load_model
    from ..render_models import render_model, render_models

    if name is None:
        emit(render_models([load_model(each) for each in list_models()], form.value))
    else:
        emit(render_model(load_model(name), form.value))
