"""What moving a lever does, as a tornado: the largest swing first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import altair as alt

from ...sim.studies.effects import better
from . import palette
from .data import WIDTH, Layered, Row, Rows, chart, some

_DIRECTION: Final[Mapping[str, str]] = {
    "better": palette.GOOD,
    "worse": palette.BAD,
    "changed": palette.MUTED,
}


def tornado_rows(found: Mapping[str, Any]) -> list[Row]:
    """Return an explanation's levers as rows of ``tornado``: one for every value that was tried.

    Parameters
    ----------
    found : ``sim.studies.explain.Explanation.to_dict()``
    """
    rows: list[Row] = []
    for lever in found["levers"]:
        for effect in lever["effects"]:
            if effect["change"] is not None:
                rows.append(
                    {
                        "lever": lever["leaf"],
                        "group": lever["group"],
                        "text": effect["text"],
                        "change": effect["change"],
                        "stability": effect["stability"] or "steady",
                        "direction": _direction(found["metric"], effect["change"]),
                    }
                )
    return rows


def _direction(metric: str, change: float) -> str:
    gain = better(metric, change)
    return "changed" if gain is None or not change else "better" if gain > 0 else "worse"


def tornado(rows: Rows, *, metric: str, width: int = WIDTH, most: int = 16, bar: int = 22) -> Layered:
    """Return by how much each lever changes a metric, the levers with the largest swing first.

    Parameters
    ----------
    rows : ``lever``, ``text`` (the value tried), ``change`` (of the metric, -), ``direction`` (``better``, ``worse``,
        ``changed``), ``group``, ``stability``
    metric : what changes; said in the axis title
    width : of the plot without its axes [px]
    most : levers shown
    bar : height of one lever [px]
    """
    swings: dict[str, float] = {}
    for row in some(rows, "levers"):
        swings[row["lever"]] = max(swings.get(row["lever"], 0.0), abs(row["change"]))
    order = sorted(swings, key=lambda lever: -swings[lever])
    shown = order[:most]
    kept = [row for row in rows if row["lever"] in set(shown)]
    kept = _outermost(kept)
    ends = max(max((abs(row["change"]) for row in kept), default=0.0), 0.01) * 1.25
    scale = alt.Scale(domain=[-ends, ends], nice=False)
    text = "datum.value === 0 ? '0' : format(datum.value, '+.0%')"
    if ends < 0.05:
        text = "datum.value === 0 ? '0' : format(datum.value, '+.1%')"
    x = alt.X(
        "change:Q", title=f"change of {metric}", scale=scale, axis=alt.Axis(labelExpr=text, tickCount=7)
    )
    y = alt.Y("lever:N", title=None, sort=shown, axis=alt.Axis(labelLimit=230, ticks=False, domain=False))
    base = chart(kept).encode(x=x, y=y)
    bars = base.mark_bar(height=bar - 9, cornerRadius=1).encode(
        x2=alt.datum(0),
        color=palette.colour("direction", _DIRECTION, (row["direction"] for row in kept)),
        opacity=alt.condition("datum.stability === 'steady'", alt.value(0.9), alt.value(0.4)),
        tooltip=[
            alt.Tooltip("lever:N"),
            alt.Tooltip("text:N", title="value"),
            alt.Tooltip("change:Q", title=f"change of {metric}", format="+.2%"),
            alt.Tooltip("group:N"),
            alt.Tooltip("stability:N"),
        ],
    )
    words = [
        base.transform_filter(f"datum.change {'<' if left else '>='} 0")
        .mark_text(align="right" if left else "left", dx=-4 if left else 4, fontSize=10)
        .encode(text="text:N")
        for left in (True, False)
    ]
    zero = chart([{"at": 0.0}]).mark_rule(strokeWidth=1, color=palette.MUTED)
    left_out = len(order) - len(shown)
    subtitle = "each lever alone, same requests" + (
        f"; {left_out} more levers change less" if left_out > 0 else ""
    )
    return alt.layer(bars, *words, zero.encode(x=alt.X("at:Q", scale=scale))).properties(
        width=width,
        height=bar * len(shown),
        title=alt.Title(f"What would change {metric}", subtitle=subtitle),
    )


def _outermost(rows: Rows) -> list[Row]:
    """Return of each lever the largest change to either side, so that no bar hides another."""
    found: dict[tuple[str, bool], Row] = {}
    for row in rows:
        key = row["lever"], row["change"] < 0
        if key not in found or abs(row["change"]) > abs(found[key]["change"]):
            found[key] = row
    return list(found.values())
