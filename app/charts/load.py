"""Charts over the load: latencies against the rate of requests, and measured runs against their replays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import altair as alt

from . import palette
from .data import HEIGHT, MAX_MARKS, WIDTH, Layered, Row, Rows, chart, some, thinned

RATE: Final = "workload.arrivals.rate_per_s"
METRICS: Final[Mapping[str, str]] = {
    "TTFT": "latency.ttft_s",
    "TPOT": "latency.tpot_s",
    "ITL": "latency.itl_s",
    "E2E": "latency.e2e_s",
}


def load_rows(points: Iterable[Mapping[str, Any]], statistic: str = "p99", leaf: str = RATE) -> list[Row]:
    """Return the points of a sweep over the rate as rows of ``load_curves``.

    Parameters
    ----------
    points : ``Point.to_dict()`` of a sweep; points that could not run are left out
    statistic : ``mean``, ``p50``, ``p90``, ``p95``, ``p99`` or ``max``
    leaf : the scenario's leaf that holds the rate
    """
    found: list[Row] = []
    for point in points:
        if point.get("error") or leaf not in point["settings"]:
            continue
        for name, prefix in METRICS.items():
            key = f"{prefix}.{statistic}"
            seconds = point["metrics"].get(key)
            if seconds is not None:
                low, high = point.get("interval", {}).get(key) or (seconds, seconds)
                found.append(
                    {
                        "rate_per_s": float(point["settings"][leaf]),
                        "metric": name,
                        "ms": seconds * 1e3,
                        "low_ms": low * 1e3,
                        "high_ms": high * 1e3,
                        "stability": point.get("stability") or "steady",
                    }
                )
    return found


def load_curves(
    rows: Rows,
    *,
    statistic: str = "p99",
    slo_s: Mapping[str, float] | None = None,
    knee_per_s: float | None = None,
    width: int = WIDTH,
    height: int = HEIGHT,
) -> Layered:
    """Return TTFT, TPOT and ITL against the rate of requests, with bands, thresholds and where the load is too much.

    Parameters
    ----------
    rows : ``rate_per_s``, ``metric`` (``TTFT``, ``TPOT``, ``ITL``, ``E2E``), ``ms``, ``low_ms``, ``high_ms``,
        ``stability``: hollow points have no steady state
    statistic : which the rows hold; said in the axis title
    slo_s : metric -> threshold, dashed in its colour [s]
    knee_per_s : highest rate within the SLO [requests/s]
    width, height : of the plot without its axes [px]
    """
    present = [name for name in palette.LATENCIES if any(row["metric"] == name for row in some(rows, "load"))]
    tint = palette.colour("metric", palette.LATENCIES, present)
    x = alt.X("rate_per_s:Q", title="request rate [requests/s]", scale=alt.Scale(zero=False, nice=False))
    scale = alt.Scale(type="log", nice=False)
    title = f"{statistic} of completed requests [ms]; TPOT, ITL: per output token"
    y = alt.Y("ms:Q", title=title, scale=scale, axis=alt.Axis(format=",~r", titleLimit=height + 40))
    base = chart(rows).encode(x=x, color=tint)
    layers: list[alt.Chart] = [
        base.mark_area(opacity=0.22).encode(y=alt.Y("low_ms:Q", scale=scale, title=title), y2="high_ms:Q"),
        base.mark_line(strokeWidth=1.8).encode(y=y),
        base.mark_point(filled=True, size=46, stroke="white", strokeWidth=0.6).encode(
            y=y,
            fillOpacity=alt.condition("datum.stability === 'steady'", alt.value(1.0), alt.value(0.15)),
            tooltip=[
                alt.Tooltip("metric:N"),
                alt.Tooltip("rate_per_s:Q", title="rate [requests/s]", format=",.4~g"),
                alt.Tooltip("ms:Q", title=f"{statistic} [ms]", format=",.4~g"),
                alt.Tooltip("low_ms:Q", title="90 % from [ms]", format=",.4~g"),
                alt.Tooltip("high_ms:Q", title="to [ms]", format=",.4~g"),
                alt.Tooltip("stability:N"),
            ],
        ),
    ]
    marks = [{"metric": name, "ms": slo_s[name] * 1e3} for name in present if slo_s and name in slo_s]
    if marks:
        rule = chart(marks).mark_rule(strokeDash=[5, 3], strokeWidth=1.5)
        layers.append(rule.encode(y=alt.Y("ms:Q", scale=scale, title=title), color=tint))
    if knee_per_s is not None:
        knee = chart([{"rate_per_s": knee_per_s}]).mark_rule(color=palette.GOOD, strokeWidth=1.5)
        layers.append(
            knee.encode(x=x, tooltip=[alt.Tooltip("rate_per_s:Q", title="highest rate within the SLO")])
        )
    said = ["bands: 90 % intervals"] + ["dashed: SLO threshold"] * bool(marks)
    said += ["green: highest rate within the SLO"] * (knee_per_s is not None)
    subtitle = "; ".join([*said, "pale points: no steady state"])
    return alt.layer(*layers).properties(
        width=width, height=height, title=alt.Title("Latency against load", subtitle=subtitle)
    )


def measured_against_predicted(
    rows: Rows, *, unit: str = "ms", width: int = 300, height: int = 300
) -> Layered:
    """Return replays of served runs against what was measured, both logarithmic, with a band of 10 %.

    Parameters
    ----------
    rows : ``measured``, ``predicted`` (both above 0), ``group`` (at most six), ``label``
    unit : of both
    width, height : of the plot without its axes [px]
    """
    few = thinned(some(rows, "measured against predicted"), "measured", "predicted", "group", MAX_MARKS - 2)
    values = [float(row[name]) for row in few for name in ("measured", "predicted")]
    low, high = min(values) / 1.3, max(values) * 1.3
    scale = alt.Scale(type="log", domain=[low, high], nice=False)
    groups = list(dict.fromkeys(str(row["group"]) for row in few))
    colours = dict(zip(groups, palette.SCENARIOS, strict=False)) | dict.fromkeys(groups[6:], palette.MUTED)
    ends = chart([{"measured": m, "predicted": m, "low": m / 1.1, "high": m * 1.1} for m in (low, high)])
    x = alt.X("measured:Q", title=f"measured [{unit}]", scale=scale, axis=alt.Axis(format=",~r"))
    y = alt.Y("predicted:Q", title=f"predicted [{unit}]", scale=scale, axis=alt.Axis(format=",~r"))
    band = ends.mark_area(color=palette.MUTED, opacity=0.2, clip=True)
    equal = ends.mark_line(color=palette.MUTED, strokeDash=[4, 3], strokeWidth=1, clip=True)
    points = chart(few).mark_point(filled=True, size=34, opacity=0.8)
    return alt.layer(
        band.encode(x=x, y=alt.Y("low:Q", scale=scale, title=f"predicted [{unit}]"), y2="high:Q"),
        equal.encode(x=x, y=y),
        points.encode(
            x=x,
            y=y,
            color=palette.colour("group", colours, groups),
            tooltip=[
                alt.Tooltip("label:N"),
                alt.Tooltip("group:N"),
                alt.Tooltip("measured:Q", title=f"measured [{unit}]", format=",.4~g"),
                alt.Tooltip("predicted:Q", title=f"predicted [{unit}]", format=",.4~g"),
            ],
        ),
    ).properties(
        width=width,
        height=height,
        title=alt.Title("Predicted against measured", subtitle="dashed: equal; band: within 10 %"),
    )
