"""Load and SLO: latencies against the rate of requests, the knee, and the highest rate within the SLO."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import streamlit as st

from ...sim.output.view import view_of
from ...sim.output.views import latency_rows
from ...sim.studies.loadcurve import REPEAT, SHARES, load_curve
from ...sim.studies.search import Probe, highest_rate
from ..charts.load import load_curves, load_rows
from ..charts.requests import latencies
from ..text import number, percent
from .drawn import chart
from .figures import DASH
from .runs import hash_of, jobs_for, known_study, store_folder, study
from .work import run, wait_for

if TYPE_CHECKING:
    from ...sim.scenario import Scenario
    from .jobs import Progress
    from .sidebar import Asked

MOST = 600
"""Requests of one run of the curve; the scenario's own where they are fewer."""
STATISTICS = ("p50", "p90", "p99", "mean")
WORDS = {"ttft_s": "TTFT", "tpot_s": "TPOT", "e2e_s": "E2E"}
ABOUT = 14
"""Runs that a search usually takes."""


def page(asked: Asked) -> None:
    """Draw the page."""
    scenario = asked.scenario
    curve = st.container()
    found = run(scenario)
    if found is not None:
        st.subheader("At the rate of the sidebar", anchor=False)
        chart("latencies", lambda: latencies(latency_rows(view_of(found.result)), slo_s=_thresholds(scenario)),
              "Share of requests served within a time", empty="No request was completed.")  # fmt: skip
    workload = scenario.workload
    with curve:
        if workload is None or (workload.trace is None and not hasattr(workload.arrivals, "rate_per_s")):
            st.info(
                "A closed loop has no rate: its users wait for their answers. Choose other arrivals in the sidebar to "
                "see a curve."
            )
        elif found is not None:
            _curve(scenario)


def _curve(scenario: Scenario) -> None:
    requests = _requests(scenario)
    cards = st.container(horizontal=True)
    statistic = st.segmented_control(
        "Statistic over requests",
        STATISTICS,
        default="p99",
        required=True,
        key="statistic",
        bind="query-params",
    )
    place = st.container()
    searched = st.container()
    key = ("load", hash_of(scenario), requests)
    with place:
        found: dict[str, Any] | None = known_study(key) or wait_for(
            f"load {key[1]}", f"{len(SHARES)} rates, {REPEAT} seeds each",
            lambda progress: study(
                key, lambda: load_curve(
                    scenario, store_folder(), requests=requests, jobs=jobs_for(scenario), progress=progress
                ).to_dict()
            ),
            "Run them",
        )  # fmt: skip
    if found is None:
        return
    best = known_study(("highest", *key[1:])) or {}
    within = best.get("rate_per_s") or found["within_per_s"]
    with cards:
        told = (
            "Searched to within 4 %, confirmed by a longer run."
            if best
            else "Of the curve's rates; search below."
        )
        _card("Within SLO up to [requests/s]", within, told)
        _card(
            "Knee [requests/s]",
            found["knee_per_s"],
            "Throughput over mean latency is largest: Kleinrock's power.",
        )
        _card(
            "All at once [requests/s]",
            found["ceiling_per_s"],
            "Throughput where all requests are there at first.",
        )
    with place:
        rows = load_rows(found["points"], str(statistic))
        if statistic == "mean":
            rows = [row for row in rows if row["stability"] == "steady"]
        marks: dict[str, Any] = {"slo_s": _thresholds(scenario), "knee_per_s": within, "height": 330}
        chart("load", lambda: load_curves(rows, statistic=str(statistic), **marks),
              "Latency against the rate of requests")  # fmt: skip
        st.caption(
            f"{requests:,} requests a run; the same requests, closer together. Means are drawn of steady states alone."
        )
        st.dataframe(_table(found), hide_index=True, width="stretch")
    with searched:
        _search(scenario, requests, key)


def _requests(scenario: Scenario) -> int:
    asked = scenario.workload.requests if scenario.workload else None
    return min(asked or MOST, MOST)


def _card(label: str, value: float | None, told: str) -> None:
    st.metric(label, DASH if value is None else number(value), border=True, help=told, width=250)


def _thresholds(scenario: Scenario) -> dict[str, float]:
    slo = scenario.slo.classes.get("default") if scenario.slo else None
    given = slo.thresholds() if slo else {}
    return {word: given[name] for name, word in WORDS.items() if name in given}


def _table(found: dict[str, Any]) -> dict[str, list[str]]:
    """Return what the points of a curve say, as columns of text."""
    columns: dict[str, list[str]] = {
        name: []
        for name in (
            "rate [requests/s]",
            "completed [requests/s]",
            "within SLO",
            "TTFT p99 [ms]",
            "TPOT p99 [ms]",
            "state",
        )
    }
    for point in found["points"]:
        metrics = point["metrics"]
        row = (
            number(next(iter(point["settings"].values()))),
            _text(metrics["throughput.requests_per_s"]),
            _text(metrics["slo.attainment"], percent),
            _text(metrics["latency.ttft_s.p99"], lambda seconds: number(1e3 * seconds)),
            _text(metrics["latency.tpot_s.p99"], lambda seconds: number(1e3 * seconds)),
            point["stability"] or DASH,
        )
        for column, text in zip(columns.values(), row, strict=True):
            column.append(text)
    return columns


def _text(value: float | None, write: Any = number) -> str:
    return DASH if value is None else write(value)


def _search(scenario: Scenario, requests: int, key: tuple[Any, ...]) -> None:
    """Show the search for the highest rate, where it was asked for."""
    name = ("highest", *key[1:])
    found = known_study(name)
    if found is None:
        if not (scenario.slo and scenario.slo.classes):
            st.caption("Without an SLO there is no highest rate to search.")
            return
        if not st.toggle("Search the highest rate within the SLO", key="search", persist_state="session"):
            return
        found = wait_for(
            " ".join(map(str, name)), "Searching the highest rate",
            lambda progress: study(name, lambda: _searched(scenario, requests, progress)), "Search",
        )  # fmt: skip
        if found is not None:
            st.rerun()
        return
    low, high = found["span"]
    if found["rate_per_s"]:
        st.success(
            f"{number(found['rate_per_s'])} requests/s is the highest rate within the SLO that a longer run confirmed; "
            f"it lies between {number(low)} and {number(high)} ({found['runs']} runs)."
        )
    else:
        st.warning(f"No rate is within the SLO ({found['runs']} runs).")


def _searched(scenario: Scenario, requests: int, progress: Progress) -> dict[str, Any]:
    probes: list[Probe] = []

    def told(found: Probe) -> None:
        probes.append(found)
        progress(len(probes), max(ABOUT, len(probes) + 1))

    capacity = highest_rate(scenario, requests, told=told)
    return {"rate_per_s": capacity.rate_per_s, "span": capacity.span, "runs": capacity.runs}
