"""A chart as a picture: PNG or SVG, on a light or a dark ground, drawn without a browser or network."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from .theme import Theme, config

if TYPE_CHECKING:
    from .page import HasSpec

SCALE = 2.0
"""Pixels of a PNG for each of the chart."""


def picture(chart: HasSpec, form: str, theme: Theme = "light") -> bytes:
    """Return a chart as the bytes of a file.

    Parameters
    ----------
    chart : any chart of membound
    form : ``png`` or ``svg``
    theme : ``light`` or ``dark``
    """
    import vl_convert as vlc

    spec = json.dumps(chart.to_dict(validate=False) | {"config": config(theme)})
    if form == "svg":
        return vlc.vegalite_to_svg(spec).encode()
    return vlc.vegalite_to_png(spec, scale=SCALE)
