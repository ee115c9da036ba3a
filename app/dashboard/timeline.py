"""Timeline: the run step by step: queue, KV blocks, preemptions and transfers; a brush chooses a part of it."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import streamlit as st

from ...sim.output.chrometrace import write_trace
from ...sim.output.view import view_of
from ...sim.output.views import limiter_time_rows, share_rows, timeline_rows, waterfall_rows
from ..charts.data import some
from ..charts.requests import waterfall
from ..charts.shares import limiter_over_time, shares_over_time
from ..charts.timeline import panel, strip
from ..text import number
from .drawn import chart, selected
from .work import run

if TYPE_CHECKING:
    from .runs import Answer
    from .sidebar import Asked

Rows = Sequence[Mapping[str, Any]]
TITLES: Mapping[str, str] = {
    "requests": "Requests running and waiting", "kv": "KV blocks used and held", "step": "Time of a step",
    "tokens": "Computed tokens", "preemptions": "Preemptions", "transfers": "KV transfers",
}  # fmt: skip


def page(asked: Asked) -> None:
    """Draw the page."""
    found = run(asked.scenario)
    if found is None:
        return
    _counts(found)
    if found.result.record.steps is not None:
        st.download_button(
            "Download the Chrome trace", lambda: trace_of(found), "trace.json.gz", "application/gzip",
            on_click="ignore", help="One track for each resource, counters for queue and KV; opens in Perfetto.",
        )  # fmt: skip
    view = view_of(found.result)
    panels = timeline_rows(view)
    if not panels.get("requests"):
        st.caption("No request was served: there is nothing to show over time.")
        return
    window = selected("strip", lambda: strip(panels["requests"], height=60), "Requests over the whole run")
    st.caption(
        f"{number(window[0])} to {number(window[1])} s of the run; click beside the window to see all of it."
        if window else "All of the run. Bands reach from the least to the largest value, lines are means."
    )  # fmt: skip
    columns = st.columns(2)
    shown = [name for name in TITLES if panels.get(name)]
    for at, name in enumerate(shown):
        with columns[at % 2]:
            rows = within(panels[name], window)
            chart(
                f"panel {name}",
                partial(_panel, rows, name),
                TITLES[name],
                empty=f"{TITLES[name]}: none here.",
            )
    left, right = st.columns(2)
    with left:
        chart("shares", lambda: shares_over_time(within(share_rows(view), window)), "Shares of time by cause")
    with right:
        chart("limiter", lambda: limiter_over_time(within(limiter_time_rows(view), window)),
              "What kept the batch small", empty="No step ran in this part.")  # fmt: skip
    middle = None if window is None else sum(window) / 2
    chart("waterfall", lambda: waterfall(waterfall_rows(view, around_s=middle)), "What requests lived through",
          empty="No request was served.")  # fmt: skip


def trace_of(found: Answer) -> bytes:
    """Return the steps of a run as a gzipped Chrome trace."""
    with tempfile.TemporaryDirectory(prefix="membound-") as folder:
        path = Path(folder) / "trace.json.gz"
        write_trace(found.result.record, path)
        return path.read_bytes()


def within(rows: Rows, window: tuple[float, float] | None) -> Rows:
    """Return the rows of a part of the run."""
    if window is None:
        return rows
    return [row for row in rows if row["t2_s"] > window[0] and row["t_s"] < window[1]]


def _panel(rows: Rows, name: str) -> Any:
    return panel(some(rows, name), name, height=120).properties(title=TITLES[name])


def _counts(found: Answer) -> None:
    summary = found.summary
    counts = (
        ("Duration [s]", number(summary["throughput"]["duration_s"] or 0.0)),
        ("Steps", f"{summary['simulation']['steps']:,}"),
        ("Preemptions", f"{summary['requests']['preemptions']:,}"),
        ("Rejected", f"{summary['requests']['rejected']:,}"),
        ("KV pool, peak", f"{100 * (summary['kv']['peak_usage'] or 0.0):.1f} %"),
    )
    with st.container(horizontal=True):
        for label, value in counts:
            st.metric(label, value, border=True, width=150)
