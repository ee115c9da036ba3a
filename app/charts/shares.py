"""Charts of where the time went: causes, what limited the batch, and what a monitoring tool would have shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import altair as alt

from . import palette
from .data import HEIGHT, WIDTH, Layered, Rows, chart, percent_axis, seconds_axis, some

_STACKED = alt.Scale(domain=[0, 1], nice=False)


def shares_over_time(rows: Rows, *, width: int = WIDTH, height: int = HEIGHT) -> alt.Chart:
    """Return the shares of wall time by cause over time, stacked to 1.

    Parameters
    ----------
    rows : ``sim.views.share_rows``
    width, height : of the plot without its axes [px]
    """
    title = "Where the time went"
    return _stack(
        rows, "cause", palette.CAUSES, palette.CAUSE_NAMES, "share of wall time", title, width, height
    )


def limiter_over_time(rows: Rows, *, width: int = WIDTH, height: int = HEIGHT) -> alt.Chart:
    """Return what kept the batch from being larger over time.

    Parameters
    ----------
    rows : ``sim.views.limiter_time_rows``
    width, height : of the plot without its axes [px]
    """
    title = "What kept the batch from being larger"
    names = palette.LIMITER_NAMES
    return _stack(rows, "limiter", palette.LIMITERS, names, "share of wall time", title, width, height)


def _stack(
    rows: Rows, field: str, colours: Mapping[str, str], names: Mapping[str, str], axis: str, title: str,
    width: int, height: int,
) -> alt.Chart:  # fmt: skip
    order = list(colours)
    tint = palette.colour(field, colours, (row[field] for row in rows), names=names)
    reached: dict[float, float] = {}
    cut: list[dict[str, Any]] = []
    for row in sorted(some(rows, field), key=lambda row: order.index(row[field])):
        low = reached.get(row["t_s"], 0.0)
        reached[row["t_s"]] = high = low + row["share"]
        cut.append({**row, "low": low, "high": high, "name": names[row[field]]})
    return (
        chart(cut)
        .mark_rect(strokeWidth=0.7, clip=True)
        .encode(
            x=seconds_axis(),
            x2="t2_s:Q",
            y=alt.Y("low:Q", title=axis, scale=_STACKED, axis=percent_axis(tickCount=5)),
            y2="high:Q",
            color=tint,
            stroke=alt.Stroke(**cast("dict[str, Any]", tint.to_dict())),
            tooltip=[
                alt.Tooltip("name:N", title=field),
                alt.Tooltip("share:Q", format=".1%"),
                alt.Tooltip("t_s:Q", title="from [s]", format=",.2f"),
                alt.Tooltip("t2_s:Q", title="to [s]", format=",.2f"),
            ],
        )
        .properties(width=width, height=height, title=title)
    )


def share_bars(rows: Rows, *, width: int = WIDTH, bar: int = 34) -> Layered:
    """Return one bar a scenario, cut by the shares of its wall time by cause.

    Parameters
    ----------
    rows : ``sim.views.cause_rows``
    width : of the plot without its axes [px]
    bar : height of one scenario [px]
    """
    names = palette.CAUSE_NAMES
    return _bars(
        rows, "cause", palette.CAUSES, names, "share of wall time", "Where the time went", width, bar
    )


def limiter_bars(rows: Rows, *, width: int = WIDTH, bar: int = 34) -> Layered:
    """Return one bar a scenario, cut by what kept its batch from being larger.

    Parameters
    ----------
    rows : ``sim.views.limiter_rows``
    width : of the plot without its axes [px]
    bar : height of one scenario [px]
    """
    title, names = "What kept the batch from being larger", palette.LIMITER_NAMES
    return _bars(rows, "limiter", palette.LIMITERS, names, "share of busy time", title, width, bar)


def _bars(
    rows: Rows, field: str, colours: Mapping[str, str], names: Mapping[str, str], axis: str, title: str,
    width: int, bar: int,
) -> Layered:  # fmt: skip
    order = list(colours)
    ordered = sorted(some(rows, field), key=lambda row: order.index(row[field]))
    labels = list(dict.fromkeys(str(row["scenario"]) for row in rows))
    cut: list[dict[str, Any]] = []
    reached = dict.fromkeys(labels, 0.0)
    for row in ordered:
        low = reached[str(row["scenario"])]
        reached[str(row["scenario"])] = high = low + row["share"]
        text = f"{100 * row['share']:.0f} %" if row["share"] * width > 34 else ""
        cut.append(
            {
                **row,
                "low": low,
                "high": high,
                "middle": (low + high) / 2,
                "text": text,
                "name": names[row[field]],
            }
        )
    base = chart(cut).encode(
        y=alt.Y(
            "scenario:N", title=None, sort=labels, axis=alt.Axis(labelLimit=180, ticks=False, domain=False)
        )
    )
    boxes = base.mark_bar(height=bar - 10).encode(
        x=alt.X("low:Q", title=axis, scale=_STACKED, axis=percent_axis(tickCount=5)),
        x2="high:Q",
        color=palette.colour(field, colours, (row[field] for row in rows), names=names),
        tooltip=[
            alt.Tooltip("scenario:N"),
            alt.Tooltip("name:N", title=field),
            alt.Tooltip("share:Q", format=".1%"),
        ],
    )
    words = base.mark_text(fontSize=11, fontWeight=600, color="white").encode(x="middle:Q", text="text:N")
    return alt.layer(boxes, words).properties(width=width, height=bar * len(labels), title=title)


def monitors_over_time(rows: Rows, *, width: int = WIDTH, height: int = HEIGHT) -> alt.Chart:
    """Return what monitoring tools would show over time: a GPU can be 100 % "utilised" while it waits for memory.

    Parameters
    ----------
    rows : ``sim.views.monitor_rows``
    width, height : of the plot without its axes [px]
    """
    shown = [
        name for name in palette.MONITORS if any(row["monitor"] == name for row in some(rows, "monitor"))
    ]
    return (
        chart(rows)
        .mark_line(strokeWidth=1.8, interpolate="step-after", clip=True)
        .encode(
            x=seconds_axis(),
            y=alt.Y(
                "share:Q",
                title="share of wall time",
                axis=percent_axis(tickCount=5),
                scale=alt.Scale(domain=[0, 1.02], nice=False),
            ),
            color=palette.colour("monitor", palette.MONITORS, shown),
            tooltip=[
                alt.Tooltip("monitor:N"),
                alt.Tooltip("share:Q", format=".1%"),
                alt.Tooltip("t_s:Q", title="from [s]", format=",.2f"),
            ],
        )
        .properties(
            width=width,
            height=height,
            title=alt.Title(
                "What monitoring shows", subtitle="gpu_util: any kernel runs; dram_active: memory is at work"
            ),
        )
    )
