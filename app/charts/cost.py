"""What a configuration gives and costs: the trade between speed of one user and output of a GPU, and prices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import altair as alt

from . import palette
from .data import MAX_MARKS, WIDTH, Layered, Row, Rows, chart, some

_SOURCES: Final[Mapping[str, str]] = {"simulated": palette.ACCENT, "measured": palette.HELD_OUT}


def plan_rows(points: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Return the configurations of a plan that serve as rows of ``pareto`` and ``cost_bars``.

    Parameters
    ----------
    points : ``PlanResult.to_dict()["points"]``
    """
    names = (
        "tokens_per_s_per_gpu", "tokens_per_s_per_user", "usd_per_million_output_tokens", "usd_per_hour", "gpus",
        "pareto", "rank", "level",
    )  # fmt: skip
    return [
        {
            "label": ", ".join(str(value) for value in point["settings"].values()),
            "source": "simulated",
            **{name: point.get(name) for name in names},
        }
        for point in points
        if point.get("rank") is not None
    ]


def pareto(rows: Rows, *, width: int = WIDTH, height: int = 260) -> Layered:
    """Return output of a GPU against speed of a user, in output tokens; measured points beside the simulated.

    Parameters
    ----------
    rows : ``tokens_per_s_per_user``, ``tokens_per_s_per_gpu``, ``label``, ``pareto``, ``source`` (``simulated`` or
        ``measured``)
    width, height : of the plot without its axes [px]
    """
    known = [
        {"pareto": False, "source": "simulated", **row}
        for row in some(rows, "Pareto")
        if row.get("tokens_per_s_per_user") and row.get("tokens_per_s_per_gpu")
    ]
    some(known, "Pareto")
    known = sorted(known, key=lambda row: not row["pareto"])[:MAX_MARKS]
    front = [row for row in known if row["pareto"]]
    x = alt.X(
        "tokens_per_s_per_user:Q",
        title="speed of one user [output tokens/s/user]",
        scale=alt.Scale(zero=False),
    )
    y = alt.Y(
        "tokens_per_s_per_gpu:Q",
        title="output of one GPU [output tokens/s/GPU]",
        axis=alt.Axis(format=",~s"),
        scale=alt.Scale(zero=False),
    )
    tint = palette.colour("source", _SOURCES, (row["source"] for row in known))
    tips = [
        alt.Tooltip("label:N"),
        alt.Tooltip("source:N"),
        alt.Tooltip("tokens_per_s_per_user:Q", title="[output tokens/s/user]", format=",.4~g"),
        alt.Tooltip("tokens_per_s_per_gpu:Q", title="[output tokens/s/GPU]", format=",.4~g"),
        alt.Tooltip("pareto:N", title="nobody has more of both"),
    ]
    dots = (
        chart(known)
        .mark_point(filled=True, size=60)
        .encode(
            x=x,
            y=y,
            color=tint,
            shape=alt.Shape(
                "source:N", scale=alt.Scale(domain=list(_SOURCES), range=["circle", "diamond"]), legend=None
            ),
            opacity=alt.condition(
                "datum.pareto || datum.source === 'measured'", alt.value(0.95), alt.value(0.3)
            ),
            tooltip=tips,
        )
    )
    layers: list[alt.Chart] = []
    if front:
        line = chart(front).mark_line(
            interpolate="step-before", strokeWidth=1.3, color=palette.ACCENT, opacity=0.7
        )
        names = chart(front).mark_text(align="left", dx=7, dy=-5, fontSize=10)
        layers = [line.encode(x=x, y=y), names.encode(x=x, y=y, text="label:N")]
    subtitle = "pale: another configuration has more of both"
    return alt.layer(*layers, dots).properties(
        width=width,
        height=height,
        title=alt.Title("Speed of a user against output of a GPU", subtitle=subtitle),
    )


def cost_bars(
    rows: Rows,
    *,
    field: str = "usd_per_million_output_tokens",
    note: str = "",
    width: int = WIDTH,
    bar: int = 24,
) -> Layered:
    """Return the cost of a million output tokens, the cheapest first.

    Parameters
    ----------
    rows : ``label`` and ``field``; rows whose cost is not known are left out
    field : ``usd_per_million_output_tokens``, ``usd_per_million_tokens`` or ``joule_per_output_token``
    note : what the cost rests on, such as the price of a GPU hour
    width : of the plot without its axes [px]
    bar : height of one configuration [px]
    """
    title, form = _COSTS[field]
    known = sorted(
        ({"label": row["label"], "value": row[field]} for row in rows if row.get(field) is not None),
        key=lambda row: row["value"],
    )[:40]
    some(known, title)
    order = [row["label"] for row in known]
    base = chart(known).encode(
        x=alt.X("value:Q", title=title, axis=alt.Axis(format=",~g", tickCount=6), scale=alt.Scale(zero=True)),
        y=alt.Y("label:N", title=None, sort=order, axis=alt.Axis(labelLimit=280, ticks=False, domain=False)),
        tooltip=[alt.Tooltip("label:N"), alt.Tooltip("value:Q", title=title, format=form)],
    )
    bars = base.mark_bar(height=bar - 9, color=palette.ACCENT, cornerRadius=1)
    words = base.mark_text(align="left", dx=4, fontSize=11).encode(text=alt.Text("value:Q", format=form))
    return alt.layer(bars, words).properties(
        width=width, height=bar * len(known), title=alt.Title("What tokens cost", subtitle=note)
    )


_COSTS: Final[Mapping[str, tuple[str, str]]] = {
    "usd_per_million_output_tokens": ("USD per million output tokens", ",.3~g"),
    "usd_per_million_tokens": ("USD per million input and output tokens", ",.3~g"),
    "joule_per_output_token": ("joule per output token", ",.3~g"),
}
