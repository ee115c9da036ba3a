"""Charts: one colour for each meaning, units in every axis title, few marks, drawn by Vega-Lite as they are."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import membound as mb
import numpy as np
import pytest
from membound.sim.books.record import CAUSES, LIMITERS
from membound.sim.output import view as view_tables
from membound.sim.output import views

pytest.importorskip("altair", reason="draws charts")
from membound.app.charts import cost, data, levers, load, palette, roofline, shares, timeline
from membound.app.charts import requests as of_requests


@pytest.fixture(scope="module")
def view() -> view_tables.View:
    return view_tables.view_of(mb.simulate(scenario(), keep_steps=True))


def scenario() -> mb.Scenario:
    load = {"arrivals": {"kind": "poisson", "rate_per_s": 20}, "input_tokens": 600, "output_tokens": 40}
    return mb.Scenario.model_validate(
        {"device": "h100_sxm", "model": "llama-3.1-8b", "workload": {**load, "requests": 120}}
    )


def rates() -> list[dict[str, Any]]:
    return [
        {"rate_per_s": rate, "metric": name, "ms": 9.0 * rate, "low_ms": 8.0 * rate, "high_ms": 10.0 * rate,
         "stability": "steady" if rate < 3 else "unstable"}
        for rate in (1, 2, 3) for name in ("TTFT", "TPOT", "ITL")
    ]  # fmt: skip


def options() -> list[dict[str, Any]]:
    return [
        {"label": f"{n} GPUs", "tokens_per_s_per_user": 50.0 / n, "tokens_per_s_per_gpu": 900.0 * n,
         "usd_per_million_output_tokens": 1.0 / n, "pareto": n < 3, "source": "simulated"}
        for n in (1, 2, 3)
    ]  # fmt: skip


def under_a_roof() -> dict[str, Any]:
    point = {"kind": "decode", "dtype": "bf16", "bound": "memory", "busy_share": 1.0, "intensity": 10.0, "mfu": 0.03,
             "mbu": 0.8, "of_roofline": 0.8, "level": "measured", "flop": 1e12, "seconds": 0.04}  # fmt: skip
    step = {"tpot_s": 0.01, "bytes_per_token": 2e9, "kv_bytes_per_token": 1e8, "mfu": 0.1, "mbu": 0.7}
    points = [
        {"batch": batch, "tokens_per_s": 100.0 * batch, "fits": batch < 3, **step} for batch in (1, 2, 4)
    ]
    curve = {"points": points, "context_tokens": 900, "kv_batch": 2, "max_num_seqs": 4, "ridge_batch": None}
    ridge = {
        "dtype": "bf16",
        "tier": "hbm",
        "flops_per_s": 989e12,
        "bytes_per_s": 3.35e12,
        "intensity": 295.0,
    }
    return {"device": "h100_sxm", "points": [point], "ridges": [ridge], "curve": curve}


def effects() -> list[dict[str, Any]]:
    return [
        {"lever": "device.hbm_bandwidth", "text": text, "change": change, "group": "device", "stability": "steady",
         "direction": "better" if change < 0 else "worse"}
        for text, change in (("x1.1", -0.06), ("x0.9", 0.07))
    ]  # fmt: skip


def every_chart(view: view_tables.View) -> dict[str, Callable[[], Any]]:
    summaries = {"A": view.summary, "B": view.summary}
    pairs = [{"measured": 9.0 + n, "predicted": 10.0 + n, "group": "TTFT", "label": "x"} for n in range(3)]
    return {
        "shares over time": lambda: shares.shares_over_time(views.share_rows(view)),
        "shares of A and B": lambda: shares.share_bars(views.cause_rows(summaries)),
        "limiter": lambda: shares.limiter_bars(views.limiter_rows(summaries)),
        "monitors": lambda: shares.monitors_over_time(views.monitor_rows(view)),
        "limiter over time": lambda: shares.limiter_over_time(views.limiter_time_rows(view)),
        "ITL by position": lambda: of_requests.itl_by_position(views.position_rows(view)),
        "latencies": lambda: of_requests.latencies(views.latency_rows(view), slo_s={"TTFT": 0.5}),
        "waterfall": lambda: of_requests.waterfall(views.waterfall_rows(view)),
        "timeline": lambda: timeline.timeline(views.timeline_rows(view)),
        "load": lambda: load.load_curves(rates(), slo_s={"TTFT": 0.5}, knee_per_s=2.0),
        "measured": lambda: load.measured_against_predicted(pairs),
        "roofline": lambda: roofline.roofline(under_a_roof()),
        "batch curve": lambda: roofline.batch_curve(under_a_roof()["curve"]),
        "tornado": lambda: levers.tornado(effects(), metric="mean E2E latency"),
        "Pareto": lambda: cost.pareto(options()),
        "cost": lambda: cost.cost_bars(options(), note="at 2 USD per GPU hour"),
    }


def parts(spec: Any) -> Iterator[dict[str, Any]]:
    """Yield every mapping in a specification, data aside."""
    if isinstance(spec, dict):
        yield spec
        for key, value in spec.items():
            if key != "datasets":
                yield from parts(value)
    elif isinstance(spec, list):
        for value in spec:
            yield from parts(value)


def test_every_chart_is_valid_and_has_few_marks_and_axes_with_titles(view: view_tables.View):
    for name, make in every_chart(view).items():
        spec = make().to_dict()  # held against Vega-Lite's schema
        assert sum(len(rows) for rows in spec["datasets"].values()) <= data.MAX_MARKS, name
        channels = [
            part[axis] for part in parts(spec) for axis in ("x", "y") if isinstance(part.get(axis), dict)
        ]
        titles = [each.get("title") for each in channels if each.get("type") == "quantitative"]
        measured = {title for title in titles if title}
        assert measured, name
        units = ("[", "share of", "change of", "USD per", "preemptions", "requests")
        assert all(any(unit in title for unit in units) for title in measured), (name, measured)


def test_charts_of_tokens_say_which_tokens(view: view_tables.View):
    for name in ("ITL by position", "batch curve", "Pareto", "cost", "load", "timeline"):
        text = json.dumps(every_chart(view)[name]().to_dict())
        assert any(kind in text for kind in ("output token", "computed tokens", "per output")), name


def test_every_meaning_has_its_colour_and_names():
    assert list(palette.CAUSES) == list(palette.CAUSE_NAMES) == list(CAUSES)
    assert set(palette.LIMITERS) == set(palette.LIMITER_NAMES) == set(LIMITERS)
    assert len(set(palette.CAUSES.values())) == len(CAUSES)


VISION = {
    "normal": np.eye(3),
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
"""Linear RGB as seen: Machado, Oliveira, Fernandes 2009, severity 1."""
TO_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)


def cielab(colour: str, seen: Any) -> np.ndarray:
    srgb = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    xyz = TO_XYZ @ np.clip(np.array(seen) @ linear, 0, 1) / TO_XYZ.sum(axis=1)
    f = np.where(xyz > (6 / 29) ** 3, np.cbrt(xyz), xyz / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("vision", VISION)
def test_causes_can_be_told_apart_by_everybody(vision: str):
    seen = {name: cielab(colour, VISION[vision]) for name, colour in palette.CAUSES.items()}
    apart = {(a, b): float(np.linalg.norm(seen[a] - seen[b])) for a in seen for b in seen if a < b}
    assert min(apart.values()) >= 18, min(apart, key=lambda pair: apart[pair])


def test_a_value_keeps_its_colour_whatever_else_is_shown():
    few, many = (palette.colour("cause", palette.CAUSES, shown) for shown in (["idle"], iter(CAUSES)))
    for channel in (few, many):
        scale = channel.to_dict()["scale"]
        assert dict(zip(scale["domain"], scale["range"], strict=True))["idle"] == palette.CAUSES["idle"]


def test_nothing_to_draw_is_said():
    with pytest.raises(data.EmptyChartError, match="nothing to draw"):
        shares.share_bars([])
    with pytest.raises(data.EmptyChartError, match="no panel"):
        timeline.timeline({})


def test_thinning_keeps_the_extremes_of_every_series():
    rows = [{"t": t, "y": (t * 37) % 101, "by": t % 2} for t in range(9_000)]
    few = data.thinned(rows, "t", "y", "by", most=200)
    assert len(few) <= 200
    for series in (0, 1):
        ends = [{row["y"] for row in group if row["by"] == series} for group in (rows, few)]
        assert (min(ends[0]), max(ends[0])) == (min(ends[1]), max(ends[1]))


def test_a_tornado_shows_every_value_that_was_tried_and_whether_it_helps():
    effects = [
        {"text": "x1.1", "change": -0.05, "stability": None},
        {"text": "x0.9", "change": None, "stability": None},
    ]
    lever = {"leaf": "device.hbm_bandwidth", "group": "device", "effects": effects}
    (row,) = levers.tornado_rows({"metric": "latency.e2e_s.mean", "levers": [lever]})
    assert (row["lever"], row["text"], row["direction"]) == ("device.hbm_bandwidth", "x1.1", "better")
