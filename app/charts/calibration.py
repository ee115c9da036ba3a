"""Charts of a calibration: how near the predictions of a fitted lane come to its timings.

Every function takes rows, one a timing, and returns an altair chart. A row has ``measured_us`` and ``predicted_us``
[us], ``error`` (predicted/measured - 1), ``regime``, ``role`` (``fitted`` or ``held out``), ``op`` and ``shape``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import altair as alt

from .data import Layered, Rows
from .data import table as _data
from .palette import FITTED, HELD_OUT, MUTED

WIDTH: Final = 290
HEIGHT: Final = 270
_ROLES: Final = ("fitted", "held out")
_CLIP: Final = 1.0
"""Errors beyond this are drawn at the edge: predicted/measured - 1 [-]."""


def predicted_against_measured(rows: Rows, *, width: int = WIDTH, height: int = HEIGHT) -> Layered:
    """Return predicted over measured times, both logarithmic, with the line of equal times.

    Parameters
    ----------
    rows : timings of one lane, 1 to 5,000
    width, height : of the plot without its axes [px]

    Examples
    --------
    >>> row = {"measured_us": 10.0, "predicted_us": 11.0, "error": 0.1, "regime": "all", "role": "fitted",
    ...        "op": "gemm", "shape": "m 1, n 8, k 8"}
    >>> [layer["mark"]["type"] for layer in predicted_against_measured([row]).to_dict()["layer"]]
    ['line', 'point']
    """
    low, high = _span([*_times(rows, "measured_us"), *_times(rows, "predicted_us")])
    scale = alt.Scale(type="log", domain=[low, high], nice=False)
    ends = alt.Chart(_data([{"measured_us": end, "predicted_us": end} for end in (low, high)]))
    equal = ends.mark_line(color=MUTED, strokeWidth=1, strokeDash=[4, 3], clip=True)
    points = alt.Chart(_data(rows)).mark_point(filled=True, size=22, clip=True)
    measured = alt.X("measured_us:Q", title="measured [µs]", scale=scale, axis=_decades(low, high))
    predicted = alt.Y("predicted_us:Q", title="predicted [µs]", scale=scale, axis=_decades(low, high))
    return alt.layer(
        equal.encode(x=measured, y=predicted),
        points.encode(x=measured, y=predicted, tooltip=_tooltip(), **_by_role()),
    ).properties(width=width, height=height, title="Predicted against measured; dashed: equal")


def residuals(rows: Rows, *, width: int = WIDTH, height: int = HEIGHT) -> Layered:
    """Return errors over the measured time: a form that is wrong somewhere shows as a drift away from 0."""
    low, high = _span(_times(rows, "measured_us"))
    edge = _edge(rows)
    zero = alt.Chart(_data([{"at": 0.0}])).mark_rule(color=MUTED, strokeDash=[4, 3])
    points = _clipped(rows, edge).mark_point(filled=True, size=22, clip=True)
    return alt.layer(
        zero.encode(y=alt.Y("at:Q", title="predicted / measured − 1", axis=_percents(), scale=_errors(edge))),
        points.encode(
            x=alt.X(
                "measured_us:Q",
                title="measured [µs]",
                scale=alt.Scale(type="log", domain=[low, high], nice=False),
                axis=_decades(low, high),
            ),
            y=alt.Y("shown:Q", scale=_errors(edge)),
            tooltip=_tooltip(),
            **_by_role(),
        ),
    ).properties(width=width, height=height, title=_note("Error over measured time", rows, edge))


def residuals_by_regime(rows: Rows, *, width: int = WIDTH, height: int = HEIGHT) -> Layered:
    """Return errors by regime: every timing a tick, the middle half of them in the bar, their median dark."""
    edge = _edge(rows)
    names = list(dict.fromkeys(str(row["regime"]) for row in rows))
    regimes = alt.Y("regime:N", title=None, sort=sorted(names), axis=alt.Axis(labelLimit=130))
    whole = _clipped(rows, edge)
    ticks = whole.mark_tick(thickness=1.2, size=12, opacity=0.6)
    boxes = whole.mark_boxplot(
        size=9,
        outliers=False,
        ticks=False,
        rule=False,
        box=alt.MarkConfig(opacity=0.35),
        median=alt.MarkConfig(color=MUTED, size=14),
    )
    zero = alt.Chart(_data([{"at": 0.0}])).mark_rule(color=MUTED, strokeDash=[4, 3])
    errors = alt.X("shown:Q", title="predicted / measured − 1", axis=_percents(), scale=_errors(edge))
    half = alt.YOffset("role:N", scale=alt.Scale(domain=list(_ROLES)))
    return alt.layer(
        zero.encode(x=alt.X("at:Q", scale=_errors(edge))),
        boxes.encode(x=errors, y=regimes, yOffset=half, color=_colour()),
        ticks.encode(x=errors, y=regimes, yOffset=half, color=_colour(), tooltip=_tooltip()),
    ).properties(width=width, height=height, title=_note("Error by regime", rows, edge))


def _times(rows: Rows, name: str) -> list[float]:
    return [float(row[name]) for row in rows]


def _span(values: Sequence[float]) -> tuple[float, float]:
    """Return the ends of a logarithmic axis: a little beyond the values, half a decade at least."""
    low, high = min(values) / 1.25, max(values) * 1.25
    short = math.sqrt(10.0) / (high / low)
    return (low / math.sqrt(short), high * math.sqrt(short)) if short > 1.0 else (low, high)


def _decades(low: float, high: float) -> alt.Axis:
    """Return an axis with a label at 1, 10, 100, ..., and at 2 and 5 between where it is short."""
    steps = (1.0,) if high / low > 300.0 else (1.0, 3.0) if high / low > 30.0 else (1.0, 2.0, 5.0)
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    values = [step * 10.0**e for e in range(first, last + 1) for step in steps]
    return alt.Axis(
        values=[v for v in values if low <= v <= high], format=",~r", labelFlush=False, gridOpacity=0.5
    )


def _percents() -> alt.Axis:
    text = "datum.value === 0 ? '0' : format(datum.value, '+.0%')"
    return alt.Axis(labelExpr=text, gridOpacity=0.5, tickCount=6)


def _edge(rows: Rows) -> float:
    """Return where the axis of errors ends: beyond 99 of 100 rows, 10 % at least, 100 % at most."""
    sizes = sorted(abs(float(row["error"])) for row in rows)
    most = sizes[min(len(sizes) - 1, math.floor(0.99 * len(sizes)))]
    return min(max(1.1 * most, 0.1), _CLIP)


def _clipped(rows: Rows, edge: float) -> alt.Chart:
    """Return a chart of the rows with ``shown``, their error or the edge that it lies beyond."""
    shown = f"clamp(datum.error, {-edge}, {edge})"
    return alt.Chart(_data(rows)).transform_calculate(shown=shown)


def _errors(edge: float) -> alt.Scale:
    return alt.Scale(domain=[-edge, edge], nice=False)


def _note(title: str, rows: Rows, edge: float) -> str:
    beyond = sum(abs(float(row["error"])) > edge for row in rows)
    return title + (f"; {beyond} beyond the edge, drawn at it" if beyond else "")


def _colour() -> alt.Color:
    scale = alt.Scale(domain=list(_ROLES), range=[FITTED, HELD_OUT])
    return alt.Color("role:N", title=None, scale=scale, legend=None)


def _by_role() -> dict[str, Any]:
    """Return what marks held-out rows apart: colour, form and weight; they are drawn last, over the others."""
    shapes = alt.Scale(domain=list(_ROLES), range=["circle", "diamond"])
    return {
        "color": _colour(),
        "shape": alt.Shape("role:N", scale=shapes, legend=None),
        "size": alt.Size("role:N", scale=alt.Scale(domain=list(_ROLES), range=[14, 26]), legend=None),
        "opacity": alt.Opacity("role:N", scale=alt.Scale(domain=list(_ROLES), range=[0.6, 0.9]), legend=None),
    }


def _tooltip() -> list[alt.Tooltip]:
    return [
        alt.Tooltip("role:N"),
        alt.Tooltip("op:N"),
        alt.Tooltip("shape:N"),
        alt.Tooltip("regime:N"),
        alt.Tooltip("measured_us:Q", title="measured [µs]", format=",.4~g"),
        alt.Tooltip("predicted_us:Q", title="predicted [µs]", format=",.4~g"),
        alt.Tooltip("error:Q", format="+.1%"),
    ]
