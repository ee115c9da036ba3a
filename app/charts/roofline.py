"""Charts of what a step could reach: the roofline with operating points, and decode by batch size."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import altair as alt

from . import palette
from .data import HEIGHT, WIDTH, Layered, Row, chart, some

POINTS = 64


def roofline(found: Mapping[str, Any], *, width: int = WIDTH, height: int = 260, dtypes: int = 2) -> Layered:
    """Return the roofs of a GPU and where the steps of a run lie under them.

    Parameters
    ----------
    found : ``sim.studies.roofline.Roofline.to_dict()``
    width, height : of the plot without its axes [px]
    dtypes : roofs beside those that the points compute in, the lowest first
    """
    points = [_point(each) for each in some(found["points"], "roofline") if each["seconds"] > 0]
    used = {row["dtype"] for row in points}
    ridges = [each for each in found["ridges"] if each["tier"] == "hbm"]
    ordered = sorted(ridges, key=lambda each: (each["dtype"] not in used, each["flops_per_s"]))
    shown = ordered[: len(used) + dtypes]
    low = min(0.3, *(row["intensity"] for row in points)) / 2
    high = 4 * max(*(each["intensity"] for each in shown), *(row["intensity"] for row in points))
    roofs = [row for each in shown for row in _roof(each, low, high)]
    x = alt.X(
        "intensity:Q",
        title="arithmetic intensity [FLOP/byte of HBM]",
        scale=alt.Scale(type="log", domain=[low, high], nice=False),
        axis=alt.Axis(format="~s", tickCount=6),
    )
    y = alt.Y(
        "tflops:Q",
        title="achieved on one GPU [TFLOP/s]",
        scale=alt.Scale(type="log", nice=False),
        axis=alt.Axis(format=",~r", tickCount=6),
    )
    lines = chart(roofs).mark_line(strokeWidth=1.6, color=palette.MUTED)
    names = chart([row for row in roofs if row["last"]]).mark_text(
        align="right", baseline="bottom", dy=-3, fontSize=11
    )
    present = [row["kind"] for row in points]
    dots = chart(points).mark_point(filled=True, opacity=0.9, stroke="white", strokeWidth=0.8)
    drops = chart(points).mark_rule(strokeDash=[2, 3], opacity=0.7)
    tint = palette.colour("kind", palette.KINDS, present, title="steps")
    return alt.layer(
        lines.encode(x=x, y=y, detail="dtype:N"),
        names.encode(x=x, y=y, text="dtype:N"),
        drops.encode(x=x, y=y, y2="roof:Q", color=tint),
        dots.encode(
            x=x,
            y=y,
            color=tint,
            shape=alt.Shape(
                "bound:N",
                scale=alt.Scale(domain=["memory", "compute"], range=["circle", "diamond"]),
                legend=None,
            ),
            size=alt.Size("size:Q", scale=alt.Scale(domain=[0, 1], range=[60, 420]), legend=None),
            tooltip=[
                alt.Tooltip("kind:N", title="steps"),
                alt.Tooltip("bound:N"),
                alt.Tooltip("busy_share:Q", title="share of busy time", format=".1%"),
                alt.Tooltip("intensity:Q", title="[FLOP/B]", format=",.3~g"),
                alt.Tooltip("tflops:Q", title="[TFLOP/s]", format=",.4~g"),
                alt.Tooltip("mfu:Q", format=".1%"),
                alt.Tooltip("mbu:Q", format=".1%"),
                alt.Tooltip("of_roofline:Q", title="of the roofline", format=".1%"),
                alt.Tooltip("level:N"),
            ],
        ),
    ).properties(
        width=width,
        height=height,
        title=alt.Title(
            f"Roofline of {found['device']}",
            subtitle="dots: mean step, sized by its share of busy time (diamond: compute-bound); dotted: to the roof",
        ),
    )


def _point(each: Mapping[str, Any]) -> Row:
    rate = each["flop"] / each["seconds"]
    return {
        **{
            name: each[name]
            for name in (
                "kind",
                "dtype",
                "bound",
                "busy_share",
                "intensity",
                "mfu",
                "mbu",
                "of_roofline",
                "level",
            )
        },
        "tflops": rate / 1e12,
        "roof": rate / each["of_roofline"] / 1e12,
        "size": max(each["busy_share"], 0.02),
    }


def _roof(ridge: Mapping[str, Any], low: float, high: float) -> list[Row]:
    return [
        {
            "dtype": ridge["dtype"],
            "intensity": intensity,
            "tflops": min(ridge["bytes_per_s"] * intensity, ridge["flops_per_s"]) / 1e12,
            "last": intensity == high,
        }
        for intensity in (low, ridge["intensity"], high)
    ]


def batch_curve(curve: Mapping[str, Any], *, width: int = WIDTH, height: int = HEIGHT) -> alt.VConcatChart:
    """Return ``batch_panels`` one under the other."""
    return alt.vconcat(*batch_panels(curve, width=width, height=height), spacing=10).resolve_scale(
        color="independent", x="shared"
    )


def batch_panels(
    curve: Mapping[str, Any], *, width: int = WIDTH, height: int = HEIGHT
) -> tuple[Layered, Layered]:
    """Return what a larger batch of decodes brings: output of all and of each, and where weights stop to dominate.

    Parameters
    ----------
    curve : ``Roofline.to_dict()["curve"]``
    width, height : of both plots together, without their axes [px]
    """
    points = some(curve["points"], "batch curve")
    rows: list[Row] = [
        {
            "batch": each["batch"],
            "tokens_per_s": each["tokens_per_s"],
            "user_tokens_per_s": 1.0 / each["tpot_s"],
            "weights": each["bytes_per_token"] - each["kv_bytes_per_token"],
            "kv": each["kv_bytes_per_token"],
            "fits": bool(each["fits"]),
            "tpot_ms": each["tpot_s"] * 1e3,
            "mfu": each["mfu"],
            "mbu": each["mbu"],
        }
        for each in points
    ]
    ends: list[Row] = [
        {"batch": curve[name], "what": what}
        for name, what in (
            ("kv_batch", "KV pool full"),
            ("max_num_seqs", "max_num_seqs"),
            ("ridge_batch", "ridge"),
        )
        if curve.get(name) and curve[name] <= rows[-1]["batch"]
    ]
    half = max((height - 20) // 2, 60)
    subtitle = f"decode steps at {curve['context_tokens']:,} tokens of context each; hollow: does not fit"
    title = alt.Title("What a larger batch brings", subtitle=subtitle)
    upper = _both_rates(rows, ends, width, half).properties(title=title)
    return upper, _bytes_per_token(rows, ends, width, half)


def _batch_axis(rows: list[Row], labels: bool) -> alt.X:
    last = rows[-1]["batch"]
    powers = [4**power for power in range(math.ceil(math.log(last, 4)) + 1)]
    return alt.X(
        "batch:Q",
        title="batch [sequences]" if labels else None,
        scale=alt.Scale(type="log", base=2, nice=False, domain=[1, last]),
        axis=alt.Axis(values=powers, format=",", labels=labels),
    )


def _ends(ends: list[Row], x: alt.X) -> list[alt.Chart]:
    if not ends:
        return []
    rule = chart(ends).mark_rule(strokeDash=[4, 3], color=palette.MUTED)
    return [rule.encode(x=x, tooltip=[alt.Tooltip("what:N"), alt.Tooltip("batch:Q", format=",")])]


def _both_rates(rows: list[Row], ends: list[Row], width: int, height: int) -> Layered:
    named = {"tokens_per_s": "all sequences", "user_tokens_per_s": "each sequence"}
    colours = {
        "all sequences": palette.CAUSES["compute"],
        "each sequence": palette.CAUSES["hbm_weights"],
    }
    long = [
        {
            "batch": row["batch"],
            "of": said,
            "rate": row[name],
            **{k: row[k] for k in ("fits", "tpot_ms", "mfu", "mbu")},
        }
        for name, said in named.items()
        for row in rows
    ]
    x = _batch_axis(rows, labels=False)
    y = alt.Y(
        "rate:Q",
        title="output [tokens/s]",
        scale=alt.Scale(type="log", nice=False),
        axis=alt.Axis(format=",~s"),
    )
    base = chart(long).encode(x=x, y=y, color=palette.colour("of", colours, colours))
    dots = base.mark_point(filled=True, size=40).encode(
        fillOpacity=alt.condition("datum.fits", alt.value(1.0), alt.value(0.0)),
        tooltip=[
            alt.Tooltip("of:N"),
            alt.Tooltip("batch:Q", format=","),
            alt.Tooltip("rate:Q", title="[output tokens/s]", format=",.4~g"),
            alt.Tooltip("tpot_ms:Q", title="TPOT [ms]", format=",.3~g"),
            alt.Tooltip("mfu:Q", format=".1%"),
            alt.Tooltip("mbu:Q", format=".1%"),
            alt.Tooltip("fits:N"),
        ],
    )
    names = [
        chart([row])
        .mark_text(align="right", dx=-5, baseline="top", fontSize=10, angle=0, color=palette.MUTED)
        .encode(x=x, y=alt.value(2 + 12 * at), text="what:N")
        for at, row in enumerate(ends)
    ]
    return alt.layer(*_ends(ends, x), base.mark_line(strokeWidth=1.8), dots, *names).properties(
        width=width, height=height
    )


def _bytes_per_token(rows: list[Row], ends: list[Row], width: int, height: int) -> Layered:
    names = {"weights": "hbm_weights", "kv": "hbm_kv"}
    long = [
        {"batch": row["batch"], "cause": cause, "mb": row[name] / 1e6, "rank": rank}
        for rank, (name, cause) in enumerate(names.items())
        for row in rows
    ]
    x = _batch_axis(rows, labels=True)
    present = list(names.values())
    lines = (
        chart(long)
        .mark_line(strokeWidth=1.8, point=alt.OverlayMarkDef(size=24))
        .encode(
            x=x,
            y=alt.Y(
                "mb:Q",
                title="HBM per output token [MB]",
                scale=alt.Scale(type="log", nice=False),
                axis=alt.Axis(format=",~s"),
            ),
            color=palette.colour("cause", palette.CAUSES, present, names=palette.CAUSE_NAMES),
            tooltip=[
                alt.Tooltip("cause:N"),
                alt.Tooltip("batch:Q", format=","),
                alt.Tooltip("mb:Q", title="[MB per output token]", format=",.4~g"),
            ],
        )
    )
    return alt.layer(*_ends(ends, x), lines).properties(width=width, height=height)
