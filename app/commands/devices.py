"""``membound devices``: the GPUs at hand, or everything known of one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..console import emit, say
from ..flags import UsageError, complete_devices
from ..options import Debug, Form, Format


def devices(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="Id, alias or path of one device.", autocompletion=complete_devices
        ),
    ] = None,
    parameters: Annotated[
        bool, typer.Option("--parameters", help="With NAME: also every fitted number of its kernels.")
    ] = False,
    to: Annotated[
        Path | None,
        typer.Option(
            "--to",
            metavar="FILE",
            show_default=False,
            help="With NAME: write its datasheet as a device file to change, which borrows its kernels.",
        ),
    ] = None,
    form: Format = Form.table,
    debug: Debug = False,
) -> None:
    """List the devices, or show all that is known of one.

    With a name: datasheet values with their sources, and how well its kernels are known.
    """
    from ...hwmodels.device import list_devices, load_device
    from ..render_devices import render_device, render_devices

    if to is not None:
        if name is None:
            raise UsageError("--to needs the device to start from: membound devices h100_sxm --to mine.yaml")
        from ..deviceskeleton import write_skeleton

        write_skeleton(name, to)
        say(f"wrote {to}; change its figures, then: membound simulate SCENARIO --device {to}")
        return
    if name is None:
        emit(render_devices([load_device(each) for each in list_devices()], form.value))
    else:
        emit(render_device(load_device(name), form.value, parameters=parameters))
