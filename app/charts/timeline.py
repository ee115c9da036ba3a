"""The run over time: queue, KV blocks, steps, tokens, preemptions and transfers; a brush on the first shows a part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import altair as alt

from . import palette
from .data import WIDTH, EmptyChartError, Layered, Rows, chart

_PANELS: Final[Mapping[str, tuple[str, str]]] = {
    "requests": ("requests", ",.0f"),
    "kv": ("KV [share of pool]", ".0%"),
    "step": ("step time [ms]", ",.4~r"),
    "tokens": ("computed tokens [tokens/s]", ",~s"),
    "preemptions": ("preemptions", ",.0f"),
    "transfers": ("KV transfers [B/s]", ",~s"),
}
"""Panel -> title of its axis and format of its numbers."""
_SERIES: Final[Mapping[str, str]] = {
    "running": palette.CAUSES["hbm_weights"],
    "waiting": palette.CAUSES["compute"],
    "used": palette.CAUSES["hbm_kv"],
    "held": palette.CAUSES["hbm_activations"],
    "step": palette.CAUSES["bubble"],
    "decode": palette.PHASES["decode"],
    "prefill": palette.PHASES["prefill"],
    "preemptions": palette.BAD,
    "in": palette.CAUSES["transfer"],
    "out": palette.CAUSES["communication"],
}


def timeline(
    panels: Mapping[str, Rows], *, width: int = WIDTH, height: int = 110, brush: bool = True
) -> alt.VConcatChart:
    """Return the run over time in panels, one under the other.

    Drag over the first panel to see that part in the others; bands reach from least to largest value.

    Parameters
    ----------
    panels : ``sim.views.timeline_rows``
    width, height : of one panel without its axes [px]
    brush : whether a strip to drag over comes first

    Raises
    ------
    EmptyChartError : no panel has a row
    """
    shown = [name for name in _PANELS if panels.get(name)]
    if not shown:
        raise EmptyChartError("nothing to draw: the timeline has no panel; allowed: one or more")
    window = alt.selection_interval(encodings=["x"], name="window")
    span = _span(panels[shown[0]])
    parts: list[Layered] = []
    if brush:
        top = _panel(
            "requests" if "requests" in shown else shown[0], panels, width, 42, alt.Scale(domain=span)
        )
        parts.append(top.add_params(window).properties(title="Drag to choose a part of the run"))
    scale = alt.Scale(domain=window, nice=False) if brush else alt.Scale(domain=span, nice=False)  # pyright: ignore[reportArgumentType]
    parts += [_panel(name, panels, width, height, scale, titled=name == shown[-1]) for name in shown]
    return alt.vconcat(*parts, spacing=8).resolve_scale(color="independent")


def strip(rows: Rows, *, width: int = WIDTH, height: int = 60) -> Layered:
    """Return a strip to drag over: the selection ``window`` holds the part of the run that was chosen.

    Parameters
    ----------
    rows : those of any panel in ``sim.views.timeline_rows``
    width, height : of the plot without its axes [px]
    """
    window = alt.selection_interval(encodings=["x"], name="window")
    drawn = _panel("requests", {"requests": rows}, width, height, alt.Scale(domain=_span(rows), nice=False))
    return drawn.add_params(window).properties(title="Drag to choose a part of the run")


def panel(rows: Rows, name: str, *, width: int = WIDTH, height: int = 150) -> Layered:
    """Return one panel of the timeline.

    Parameters
    ----------
    rows : those of the panel in ``sim.views.timeline_rows``
    name : the panel's
    width, height : of the plot without its axes [px]
    """
    return _panel(name, {name: rows}, width, height, alt.Scale(domain=_span(rows), nice=False))


def _span(rows: Rows) -> list[float]:
    return [min(row["t_s"] for row in rows), max(row["t2_s"] for row in rows)]


def _panel(
    name: str,
    panels: Mapping[str, Rows],
    width: int,
    height: int,
    scale: alt.Scale,
    *,
    titled: bool = True,
) -> Layered:
    title, form = _PANELS[name]
    rows = panels[name]
    present = list(dict.fromkeys(str(row["series"]) for row in rows))
    tint = palette.colour("series", _SERIES, present, legend=len(present) > 1)
    x = alt.X("t_s:Q", title="time since the first arrival [s]" if titled else None, scale=scale)
    axis = alt.Axis(format=form, tickCount=4, titleLimit=200)
    tips = [
        alt.Tooltip("series:N"),
        alt.Tooltip("t_s:Q", title="from [s]", format=",.2f"),
        *(alt.Tooltip(f"{each}:Q", format=form) for each in ("low", "mean", "high")),
    ]
    base = chart(rows)
    if name == "preemptions":
        marks = [
            base.mark_rule(clip=True, strokeWidth=1.5).encode(
                x=x, y=alt.Y("mean:Q", title=title, axis=axis), color=tint, tooltip=tips
            )
        ]
        return alt.layer(*marks).properties(width=width, height=height)
    band = base.mark_area(opacity=0.25, interpolate="step-after", clip=True).encode(
        x=x, y=alt.Y("low:Q", title=title, axis=axis, scale=alt.Scale(zero=True)), y2="high:Q", color=tint
    )
    line = base.mark_line(strokeWidth=1.5, interpolate="step-after", clip=True).encode(
        x=x, y=alt.Y("mean:Q", title=title, axis=axis), color=tint, tooltip=tips
    )
    return alt.layer(band, line).properties(width=width, height=height)
