"""Calibration: what is known of the device, parameter by parameter, and how it holds against what a reader brings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import streamlit as st

from ...hwmodels.device import load_device
from ...hwmodels.engine import load_engine
from ...hwmodels.lanes import as_lane
from ..charts import calibration as residual_charts
from ..charts.load import measured_against_predicted
from ..render import LEVELS
from ..text import percent
from .drawn import chart
from .figures import DASH
from .uploads import LARGEST, TYPES, Checked, check
from .work import wait_for

if TYPE_CHECKING:
    from ...calibrate.fit.base import FittedValue
    from ...calibrate.residuals import LanePoints, LaneResiduals
    from ...calibrate.serving.compare import RunErrors
    from ...hwmodels.device import DeviceProfile
    from .sidebar import Asked

LATENCIES = ("ttft_mean", "tpot_mean", "e2e_mean")
SIDE = 270
"""Width and height of a chart of one lane [px]."""


def page(asked: Asked) -> None:
    """Draw the page."""
    profile = load_device(asked.scenario.device)
    _lanes(profile, load_engine(asked.scenario.engine).lane)
    st.subheader("Hold it against your own measurements", anchor=False)
    st.markdown(
        "- `fit.json` of `membound calibrate fit`, with a table of timings beside it if you have one;\n"
        "- timings of kernels (CSV or Parquet, `membound calibrate import` reads the same), against this device;\n"
        "- what `vllm bench serve --save-detailed`, AIPerf or guidellm wrote, served by the scenario of the sidebar;\n"
        "- a table of served runs or of TTFT/TPOT points (CSV, as for `membound validate`)."
    )
    files = st.file_uploader(
        "Files", type=list(TYPES), accept_multiple_files=True, max_upload_size=LARGEST // 2**20, key="upload",
        help="Read, and forgotten with this page; nothing in them is executed.", label_visibility="collapsed",
    )  # fmt: skip
    if not files:
        return
    given = [(file.name, file.getvalue()) for file in files]
    name = f"check {hash((asked.scenario.model_dump_json(), tuple(given)))}"
    kept: dict[str, Checked] = st.session_state.setdefault("_checked", {})
    if name not in kept:
        found = wait_for(
            name, "Reading and replaying", lambda progress: check(given, asked.scenario, progress)
        )
        if found is None:
            return
        kept.clear()
        kept[name] = found
    _checked(kept[name])


def _lanes(profile: DeviceProfile, engine: str) -> None:
    """Show every lane that the engines of a device may use: parameters, errors, range, source."""
    own = [
        as_lane(fitted, family, name, profile.id)
        for family, named in sorted(profile.fitted.items())
        for name, fitted in sorted(named.items())
    ]
    lanes = own or [profile.lane(family, engine) for family in sorted(profile.families())]
    said = (
        "with parameters of their own"
        if own
        else "taken over from a relative: nothing was timed on this device"
    )
    st.markdown(f"**{profile.name}**: {len(lanes)} kernel lanes, {said}.")
    columns: dict[str, list[str]] = {
        name: [] for name in ("family", "lane", "known", "parameters", "spread of errors", "source")
    }
    for lane in lanes:
        spread = max(lane.residual.values(), default=None)
        row = (
            lane.family.replace("_", " "), lane.lane, lane.level, str(len(lane.params)),
            DASH if spread is None else f"up to {percent(spread)}", lane.source,
        )  # fmt: skip
        for column, text in zip(columns.values(), row, strict=True):
            column.append(text)
    st.dataframe(columns, hide_index=True, width="stretch", height=260)
    names = [f"{each.family} / {each.lane}" for each in lanes]
    chosen = st.selectbox("Lane", names, key="lane", persist_state="session")
    _parameters(lanes[names.index(str(chosen))])


def _parameters(lane: Any) -> None:
    st.caption(f"{lane.level}: {LEVELS.get(lane.level, lane.level)} · {lane.source}")
    left, right = st.columns(2)
    with left:
        rows = {
            "parameter": list(lane.params),
            "value": [f"{value:.4g}" for value in lane.params.values()],
            "± standard error": [f"{lane.stderr.get(name, 0.0):.2g}" for name in lane.params],
        }
        st.dataframe(rows, hide_index=True, width="stretch")
    with right:
        hull = {
            "axis": list(lane.hull),
            "calibrated from": [f"{low:,.6g}" for low, _ in lane.hull.values()],
            "to": [f"{high:,.12g}" for _, high in lane.hull.values()],
        }
        if lane.hull:
            st.dataframe(hull, hide_index=True, width="stretch")
        if lane.residual:
            spread = {
                "regime": list(lane.residual),
                "spread of log(time)": [percent(each) for each in lane.residual.values()],
            }
            st.dataframe(spread, hide_index=True, width="stretch")


def _checked(found: Checked) -> None:
    for note in found.notes:
        st.caption(note)
    for lane in found.lanes:
        with st.expander(lane.name, expanded=len(found.lanes) < 4):
            _fit(lane)
    for points in found.points:
        st.markdown(f"**{points.name}** · {points.level} · {_errors(points)}")
        _charts(points.name, points.points)
    if found.served:
        _served(found.served)
    for skipped in found.skipped:
        st.caption(f"Skipped {skipped.label.run_id}: {skipped.reason}")


def _fit(lane: LaneResiduals) -> None:
    fit = lane.fit
    train = ", ".join(f"{name} {percent(value)}" for name, value in fit.train.items())
    st.caption(f"{fit.n:,} timings fitted; {train}" if train else f"{fit.n:,} timings fitted")
    rows = {
        "parameter": list(fit.values),
        "estimate": [f"{value.estimate:.4g}" for value in fit.values.values()],
        "± standard error": [f"{value.stderr:.2g}" for value in fit.values.values()],
        "start": [f"{value.start:.4g}" for value in fit.values.values()],
        "known": [_known(value) for value in fit.values.values()],
    }
    st.dataframe(rows, hide_index=True, width="stretch")
    hull = ", ".join(f"{axis} {low:,.6g} to {high:,.12g}" for axis, (low, high) in fit.hull.items())
    st.caption(f"Calibrated range: {hull}" if hull else "It states no calibrated range.")
    if lane.points:
        _charts(lane.name, lane.points)


def _errors(points: LanePoints) -> str:
    found = points.errors
    inside = percent(found.coverage_90)
    return f"{found.n:,} timings · mean absolute error {percent(found.mape)} · inside their 90 % interval {inside}"


def _known(value: FittedValue) -> str:
    return "from the timings" if value.identified else "pinned" if value.stderr == 0 else "from the prior"


def _charts(name: str, points: Sequence[Any]) -> None:
    size = {"width": SIDE, "height": SIDE}
    columns = st.columns(3)
    drawn = (
        ("predicted", residual_charts.predicted_against_measured), ("residuals", residual_charts.residuals),
        ("regimes", residual_charts.residuals_by_regime),
    )  # fmt: skip
    for column, (kind, make) in zip(columns, drawn, strict=True):
        with column:
            chart(f"{name} {kind}", lambda make=make: make(points, **size), f"{kind} of {name}")


def _served(runs: Sequence[RunErrors]) -> None:
    """Show served runs beside their replay: errors, and measured against predicted."""
    names = ("ttft_mean", "tpot_mean", "e2e_mean", "throughput")
    table = [
        {
            "run": each.run.label.run_id,
            "GPU": each.run.label.gpu,
            "model": each.run.label.model,
            **{name.replace("_", " "): _signed(each.error.get(name)) for name in names},
            "known": each.level,
            "likely cause": each.cause or DASH,
        }
        for each in runs
    ]
    st.dataframe(table, hide_index=True, width="stretch")
    st.caption("Errors are simulated / measured - 1.")
    rows = [row for each in runs for row in _beside(each)]
    if rows:
        chart(
            "served", lambda: measured_against_predicted(rows, height=330), "Served runs against their replay"
        )


def _beside(each: RunErrors) -> list[dict[str, Any]]:
    """Return the mean latencies of a run, measured and simulated [ms]."""
    pairs = ((name, each.measured.get(name), each.error.get(name)) for name in LATENCIES)
    return [
        {
            "measured": 1e3 * was,
            "predicted": 1e3 * was * (1 + error),
            "group": name,
            "label": each.run.label.run_id,
        }
        for name, was, error in pairs
        if was and error is not None and error > -1
    ]


def _signed(value: float | None) -> str:
    return DASH if value is None else f"{100 * value:+.1f} %"
