"""Charts of single requests and their tokens: latencies, gaps by token position, and what requests lived through."""

from __future__ import annotations

from collections.abc import Mapping

import altair as alt

from . import palette
from .data import HEIGHT, WIDTH, Layered, Rows, chart, percent_axis, some, thinned


def itl_by_position(rows: Rows, *, width: int = WIDTH, height: int = HEIGHT) -> Layered:
    """Return the mean gap before an output token against the token's position: why a long answer slows down.

    Parameters
    ----------
    rows : ``sim.views.position_rows``; with ``scenario``, one line each
    width, height : of the plot without its axes [px]
    """
    few = thinned(some(rows, "itl by position"), "position", "itl_ms")
    labels = list(dict.fromkeys(str(row["scenario"]) for row in few if "scenario" in row))
    colours = dict(zip(labels, palette.SCENARIOS, strict=False))
    tint = palette.colour("scenario", colours, labels) if labels else alt.value(palette.LATENCIES["ITL"])
    base = chart(few).encode(
        x=alt.X("position:Q", title="output token [position]", scale=alt.Scale(nice=False)),
        y=alt.Y("itl_ms:Q", title="mean gap before the output token (ITL) [ms]", scale=alt.Scale(zero=True)),
        color=tint,
        tooltip=[
            alt.Tooltip("position:Q", format=",.0f"),
            alt.Tooltip("itl_ms:Q", title="ITL [ms]", format=",.3~f"),
            alt.Tooltip("emissions:Q", title="output tokens in the mean", format=","),
        ],
    )
    dots = base.mark_point(filled=True, opacity=0.75).encode(
        size=alt.Size("emissions:Q", scale=alt.Scale(type="sqrt", range=[4, 90]), legend=None)
    )
    line = base.mark_line(strokeWidth=1, opacity=0.5)
    subtitle = "large dots: means over many tokens"
    title = alt.Title("Gap between output tokens by position", subtitle=subtitle)
    return alt.layer(line, dots).properties(width=width, height=height, title=title)


def latencies(
    rows: Rows, *, slo_s: Mapping[str, float] | None = None, width: int = WIDTH, height: int = HEIGHT
) -> Layered:
    """Return the share of completed requests that were served within a time, by latency.

    Parameters
    ----------
    rows : ``sim.views.latency_rows``
    slo_s : ``TTFT``, ``TPOT``, ``E2E`` -> threshold, drawn dashed in the latency's colour [s]
    width, height : of the plot without its axes [px]
    """
    few = [
        {**row, "ms": row["seconds"] * 1e3}
        for row in thinned(some(rows, "latencies"), "share", "seconds", "metric")
        if row["seconds"] > 0
    ]
    present = [name for name in palette.LATENCIES if any(row["metric"] == name for row in few)]
    tint = palette.colour("metric", palette.LATENCIES, present)
    lines = (
        chart(few)
        .mark_line(interpolate="step-after", strokeWidth=1.8)
        .encode(
            x=alt.X(
                "ms:Q",
                title="time [ms]",
                scale=alt.Scale(type="log", nice=False),
                axis=alt.Axis(format=",~r"),
            ),
            y=alt.Y("share:Q", title="share of completed requests", axis=percent_axis(tickCount=5)),
            color=tint,
            tooltip=[
                alt.Tooltip("metric:N"),
                alt.Tooltip("share:Q", title="of requests within", format=".1%"),
                alt.Tooltip("ms:Q", title="[ms]", format=",.4~g"),
            ],
        )
    )
    layers = [lines]
    marks = [{"metric": name, "ms": slo_s[name] * 1e3} for name in present if slo_s and name in slo_s]
    if marks:
        layers.append(chart(marks).mark_rule(strokeDash=[5, 3], strokeWidth=1.5).encode(x="ms:Q", color=tint))
    title = alt.Title("Latency of requests", subtitle="dashed: SLO threshold" if marks else "")
    return alt.layer(*layers).properties(width=width, height=height, title=title)


def waterfall(rows: Rows, *, width: int = WIDTH, height: int | None = None) -> Layered:
    """Return what requests lived through, one line each: queue, prefill, decode, and stalls by others' prompts.

    Parameters
    ----------
    rows : ``sim.views.waterfall_rows``
    width : of the plot without its axes [px]
    height : default: 9 px a request [px]
    """
    some(rows, "waterfall")
    order = list(dict.fromkeys(row["request"] for row in rows))
    phases, stalls = (
        [row for row in rows if (row["phase"] == "stalled by prefill") == over] for over in (False, True)
    )
    present = {row["phase"] for row in rows}
    tint = palette.colour("phase", palette.PHASES, present)
    y = alt.Y(
        "request:O",
        title="request, by arrival",
        sort=order,
        axis=alt.Axis(labels=False, ticks=False, domain=False),
    )
    x = alt.X("start_s:Q", title="time since the first arrival [s]", scale=alt.Scale(zero=False, nice=False))
    tips = [
        alt.Tooltip("request:O"),
        alt.Tooltip("phase:N"),
        alt.Tooltip("start_s:Q", title="from [s]", format=",.3f"),
        alt.Tooltip("end_s:Q", title="to [s]", format=",.3f"),
        alt.Tooltip("input_tokens:Q", title="input tokens", format=","),
        alt.Tooltip("output_tokens:Q", title="output tokens", format=","),
        alt.Tooltip("preemptions:Q"),
    ]
    layers = [
        chart(each).mark_bar(height=tall).encode(x=x, x2="end_s:Q", y=y, color=tint, tooltip=tips)
        for each, tall in ((phases, 6), (_thin_stalls(stalls), 6))
        if each
    ]
    title = alt.Title("What requests lived through", subtitle=f"{len(order)} requests in order of arrival")
    return alt.layer(*layers).properties(width=width, height=height or max(9 * len(order), 60), title=title)


def _thin_stalls(rows: Rows) -> Rows:
    """Return stalls of which at most 4,000 are drawn, the longest."""
    return sorted(rows, key=lambda row: row["start_s"] - row["end_s"])[:4000]
