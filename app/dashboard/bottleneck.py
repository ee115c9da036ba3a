"""Bottleneck: what the GPU waits for, what keeps the batch small, and which lever comes next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import streamlit as st

from ...sim.output.view import view_of
from ...sim.output.views import limiter_time_rows, monitor_rows, position_rows, share_rows, waterfall_rows
from ...sim.studies.explain import SHORT, explain
from ...sim.studies.roofline import roofline
from ..charts import levers as lever_charts
from ..charts import requests as request_charts
from ..charts import roofline as roofline_charts
from ..charts import shares as share_charts
from ..render import notes as notes_of
from ..text import percent
from .drawn import chart
from .figures import DASH, sure
from .runs import hash_of, jobs_for, known_study, store_folder, study
from .work import run, wait_for

if TYPE_CHECKING:
    from ...sim.output.view import View
    from .jobs import Progress
    from .runs import Answer
    from .sidebar import Asked

MONITORS = {
    "gpu_util": "Share of the time in which any kernel runs: what nvidia-smi shows.",
    "dram_active": "Share of the time in which the memory interface is at work.",
    "tensor_active": "Share of the time in which matrix units are at work.",
    "mfu": "Necessary FLOP over the datasheet's peak, over busy time.",
    "mbu": "Necessary HBM bytes over the datasheet's bandwidth, over busy time.",
}
METRICS = {"E2E": "e2e", "TTFT": "ttft", "TPOT": "tpot", "throughput": "throughput", "cost": "cost"}


def page(asked: Asked) -> None:
    """Draw the page."""
    found = run(asked.scenario)
    if found is None:
        return
    _verdict(found)
    view = view_of(found.result)
    _over_time(view)
    _tokens(view)
    _roofline(asked)
    _levers(asked)


def _verdict(found: Answer) -> None:
    with st.container(border=True):
        st.markdown(f"**{found.summary['verdict']['sentence']}**")
        st.caption(f"Known: {sure(found.summary)}")
        for note in notes_of(found.summary):
            st.caption(f"Note: {note}")
    with st.container(horizontal=True):
        for name, told in MONITORS.items():
            value = found.summary["utilization"][name]
            st.metric(name, DASH if value is None else percent(value), border=True, help=told, width=150)


def _over_time(view: View) -> None:
    left, right = st.columns(2)
    with left:
        chart(
            "shares",
            lambda: share_charts.shares_over_time(share_rows(view)),
            "Shares of wall time by cause over time",
        )
    with right:
        chart("monitors", lambda: share_charts.monitors_over_time(monitor_rows(view)),
              "What monitoring tools would show over time")  # fmt: skip
    left, right = st.columns(2)
    with left:
        chart("limiter", lambda: share_charts.limiter_over_time(limiter_time_rows(view)),
              "What kept the batch from being larger over time")  # fmt: skip
    with right:
        chart("positions", lambda: request_charts.itl_by_position(position_rows(view)),
              "Mean gap before an output token by its position", empty="No answer has two tokens.")  # fmt: skip


def _tokens(view: View) -> None:
    st.subheader("Single requests", anchor=False)
    chart("waterfall", lambda: request_charts.waterfall(waterfall_rows(view)),
          "What single requests lived through", empty="No request was served.")  # fmt: skip


def _roofline(asked: Asked) -> None:
    st.subheader("Roofline and batch", anchor=False)
    if asked.scenario.speculative is not None:
        st.caption("With speculative decoding steps are of two models; a roofline is of one.")
        return
    key = ("roofline", hash_of(asked.scenario))
    found = known_study(key) or wait_for(
        f"roofline {key[1]}",
        "Steps under the roofline",
        lambda _: study(key, lambda: roofline(asked.scenario).to_dict()),
    )
    if found is None:
        return
    left, right = st.columns(2)
    with left:
        chart(
            "roofline",
            lambda: roofline_charts.roofline(found, height=300),
            "Roofline with the mean step of each kind",
        )
    with right:
        rates, read = roofline_charts.batch_panels(found["curve"], height=330)
        chart("batch rates", lambda: rates, "Output tokens a second by batch size")
        chart("batch bytes", lambda: read, "HBM bytes per output token by batch size")
    st.caption(
        f"Of the first {found['requests']:,} requests. A training step stands beside for contrast; it was never "
        "measured."
    )


def _levers(asked: Asked) -> None:
    st.subheader("What to change first", anchor=False)
    chosen = st.segmented_control(
        "Change of", list(METRICS), default="E2E", required=True, key="tornado", bind="query-params",
        help="Every lever is moved on its own; the same requests are served again.",
    )  # fmt: skip
    metric = METRICS[str(chosen)]
    key = ("explain", hash_of(asked.scenario), metric)
    scenario = asked.scenario

    def work(progress: Progress) -> dict[str, Any]:
        where: dict[str, Any] = {"folder": store_folder(), "jobs": jobs_for(scenario)}
        return study(key, lambda: explain(scenario, metric=metric, progress=progress, **where).to_dict())

    found = known_study(key) or wait_for(" ".join(key), "Moving every lever on its own", work, "Move them")
    if found is None:
        return
    st.markdown(found["advice"])
    title = (
        SHORT[metric]
        .removeprefix("latency.")
        .replace("_s.", " ")
        .replace("throughput.", "")
        .replace("cost.", "")
    )
    chart("tornado chart", lambda: lever_charts.tornado(lever_charts.tornado_rows(found), metric=title),
          "Change of the metric by each lever")  # fmt: skip
    st.caption(
        f"{found['requests']:,} requests a run; numbers are made {found['percent']:g} % less and more."
    )
