"""The page of a run: the answer, its figures, and every picture that the result directory has the rows for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from ...sim.output import views
from ...sim.output.view import View
from ..render import quotes_means
from ..text import milliseconds, number, percent
from . import requests, roofline, shares, timeline
from .data import EmptyChartError
from .page import Card, HasSpec, Section, Table, page
from .palette import CAUSE_NAMES

Summary = Mapping[str, Any]
Chart = tuple[str, HasSpec]
"""A file name without its ending, and what it shows."""

_LATENCIES: Final[tuple[tuple[str, str], ...]] = (
    ("queue", "queue_s"), ("TTFT", "ttft_s"), ("TTFT at client", "client_ttft_s"), ("TPOT", "tpot_s"),
    ("ITL", "itl_s"), ("E2E", "e2e_s"),
)  # fmt: skip
_STATISTICS: Final = ("mean", "p50", "p90", "p95", "p99", "max")
_BOUND: Final[Mapping[str, str]] = {"memory": "memory-bound", "compute": "compute-bound"}


def report_page(
    view: View, title: str, subtitle: str, text: str, roof: Mapping[str, Any] | None = None
) -> str:
    """Return a run as one HTML file.

    Parameters
    ----------
    view : the run's tables
    title, subtitle : what ran, and on what
    text : the run's figures as printed, folded at the end
    roof : ``Roofline.to_dict()`` of the scenario, where it was worked out
    """
    summary = view.summary
    parts = dict(charts(view, roof))
    sections = [
        Section("", lead=str(summary["verdict"]["sentence"]), cards=tuple(_cards(summary))),
        Section(
            "Where the time went", _shares_text(view), charts=_of(parts, "shares", "limiter", "monitors")
        ),
        Section("Under the roofline", charts=_of(parts, "roofline", "batch_curve")),
        Section(
            "Latency",
            _missing(summary),
            (_latency_table(summary),),
            _of(parts, "latencies", "itl_by_position", "waterfall"),
        ),
        Section("Over time", _steps_text(view), charts=_of(parts, "timeline")),
        Section("All figures", _warnings(summary), folded=("as printed", text)),
    ]
    return page(title, subtitle, [each for each in sections if _has_content(each)])


def _has_content(section: Section) -> bool:
    return bool(section.charts or section.tables or section.text or section.lead or section.folded)


def charts(view: View, roof: Mapping[str, Any] | None = None) -> Iterator[Chart]:
    """Yield every chart of a run that has rows, by the name of its file."""
    summary = view.summary
    here = {"": summary}
    makers: dict[str, Callable[[], HasSpec]] = {
        "time_share": lambda: shares.share_bars(views.cause_rows(here)),
        "shares": lambda: shares.shares_over_time(views.share_rows(view)),
        "limiter": lambda: shares.limiter_over_time(views.limiter_time_rows(view)),
        "monitors": lambda: shares.monitors_over_time(views.monitor_rows(view)),
        "latencies": lambda: requests.latencies(views.latency_rows(view), slo_s=thresholds(summary)),
        "itl_by_position": lambda: requests.itl_by_position(views.position_rows(view)),
        "waterfall": lambda: requests.waterfall(views.waterfall_rows(view)),
        "timeline": lambda: timeline.timeline(views.timeline_rows(view), width=1080),
    }
    if roof is not None:
        makers["roofline"] = lambda: roofline.roofline(roof)
        makers["batch_curve"] = lambda: roofline.batch_curve(roof["curve"], height=300)
    for name, make in makers.items():
        try:
            yield name, make()
        except EmptyChartError:
            continue


def thresholds(summary: Summary) -> dict[str, float]:
    """Return the SLO thresholds of the first class, by the latency's short name [s]."""
    slo = (summary.get("scenario") or {}).get("slo") or {}
    first = next(iter((slo.get("classes") or {}).values()), {}) or {}
    names = {"TTFT": "ttft_s", "TPOT": "tpot_s", "ITL": "itl_s", "E2E": "e2e_s"}
    return {short: float(first[name]) for short, name in names.items() if first.get(name) is not None}


def _of(parts: Mapping[str, HasSpec], *names: str) -> tuple[HasSpec, ...]:
    return tuple(parts[name] for name in names if name in parts)


def _cards(summary: Summary) -> Iterator[Card]:
    bound, times = str(summary["verdict"]["bound"]), summary["time_share"]
    yield Card("the GPU is", _BOUND.get(bound, bound), str(summary["verdict"].get("stability") or ""))
    hbm = [
        times[name] for name in ("hbm_weights", "hbm_kv", "hbm_activations") if times.get(name) is not None
    ]
    if hbm:
        yield Card("waiting for HBM", percent(sum(hbm)), "of wall time")
    utilization = summary["utilization"]
    if utilization["gpu_util"] is not None and utilization["dram_active"] is not None:
        yield Card(
            "gpu_util", percent(utilization["gpu_util"]), f"dram_active {percent(utilization['dram_active'])}"
        )
    for label, name in (("TTFT", "ttft_s"), ("TPOT", "tpot_s")):
        found = summary["latency"][name]
        if found["p50"] is not None:
            note = (
                f"p99 {milliseconds(found['p99'])} ms{_interval(summary, f'latency.{name}.mean', 1e3, ' ms')}"
            )
            yield Card(f"{label} p50", f"{milliseconds(found['p50'])} ms", note)
    rates, requests_ = summary["throughput"], summary["requests"]
    if rates["output_tokens_per_s_per_gpu"] is not None:
        spread = _interval(summary, "throughput.output_tokens_per_s", 1.0, "")
        note = f"output tokens/s; {number(rates['requests_per_s'])} requests/s{spread}"
        yield Card("each GPU makes", number(rates["output_tokens_per_s_per_gpu"]), note)
    usd = summary["cost"]["usd_per_million_output_tokens"]
    if usd is not None:
        price = summary["cost"]["usd_per_gpu_hour"]
        yield Card("a million output tokens", f"{number(usd)} USD", f"at {number(price)} USD per GPU hour")
    joule = summary["energy"]["joule_per_output_token"]
    if joule is not None:
        yield Card("an output token", f"{number(joule)} J")
    if summary["slo"]["met"] is not None:
        yield Card(
            "SLO",
            "met" if summary["slo"]["met"] else "missed",
            f"{percent(summary['slo']['attainment'])} of requests",
        )
    if summary["kv"]["peak_usage"] is not None:
        yield Card(
            "KV pool",
            percent(summary["kv"]["peak_usage"]),
            f"at its fullest; {requests_['preemptions']:,} preemptions",
        )
    level = summary["confidence"]["level"]
    if level is not None:
        yield Card("least known kernel", str(level).replace("_", " "), "see All figures")


def _interval(summary: Summary, metric: str, times: float, unit: str) -> str:
    found = (summary["confidence"].get("interval") or {}).get(metric)
    if not found or (metric.endswith(".mean") and not quotes_means(summary)):
        return ""
    low, high = (number(each * times) for each in found)
    return f"; mean within {low} to {high}{unit} (90 %)"


def _latency_table(summary: Summary) -> Table:
    kept = {name for name in _STATISTICS if name != "mean" or quotes_means(summary)}
    rows = [
        [
            label,
            *(
                "–" if found[name] is None or name not in kept else milliseconds(found[name])
                for name in _STATISTICS
            ),
        ]
        for label, key in _LATENCIES
        for found in (summary["latency"][key],)
    ]
    return Table(("latency [ms]", *_STATISTICS), rows, right=frozenset(range(1, 7)))


def _shares_text(view: View) -> tuple[str, ...]:
    named = [
        f"{CAUSE_NAMES[name]} {percent(share)}"
        for name, share in sorted(view.summary["time_share"].items(), key=lambda each: -(each[1] or 0.0))
        if share
    ]
    return (
        (f"All wall time of {view.replicas} replica{'s' * (view.replicas != 1)}: {' · '.join(named)}.",)
        if named
        else ()
    )


def _steps_text(view: View) -> tuple[str, ...]:
    if view.steps is None:
        return (
            "Steps were not kept in this result; run `membound simulate --out DIR --steps` for pictures over time.",
        )
    return (
        f"{len(view.steps['start_ns']):,} steps. Lines are means, bands reach from the least to the largest value.",
    )


def _missing(summary: Summary) -> tuple[str, ...]:
    lost = {name: summary["requests"][name] for name in ("rejected", "aborted")}
    said = [f"{count:,} {name}" for name, count in lost.items() if count]
    return (f"Of completed requests alone; {' and '.join(said)}.",) if said else ("Of completed requests.",)


def _warnings(summary: Summary) -> tuple[str, ...]:
    return tuple(f"Note: {each}" for each in summary["confidence"]["warnings"])
