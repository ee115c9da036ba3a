"""Capacity and cost: how many of which GPU serve a load within the SLO, what that costs, and how sure it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import streamlit as st

from ...hwmodels.device import list_devices
from ...hwmodels.errors import MemboundError
from ...sim.studies.capacity_plan import plan_of
from ...sim.studies.plan import plan
from ...sim.studies.planned import Option, PlanResult, repriced
from ..charts.cost import cost_bars, pareto, plan_rows
from ..render_plan import answer_of, reasons
from ..text import number, percent
from .drawn import chart
from .figures import DASH
from .levers import WEIGHTS
from .runs import hash_of, known_study, study
from .uploads import LARGEST, measured_points
from .work import wait_for

if TYPE_CHECKING:
    from ...sim.scenario import Scenario
    from ..charts.data import Row
    from .jobs import Progress
    from .sidebar import Asked

FIRST_DEVICES = ("h100_sxm", "h200_sxm", "b200_sxm", "l40s")
MOST = 60
"""Configurations of one search."""
PROBE = 400
"""Requests of one probe; the plan is confirmed by runs of four times as many."""


def page(asked: Asked) -> None:
    """Draw the page."""
    scenario = asked.scenario
    chosen = _choices(scenario)
    if chosen is None:
        return
    load, candidates, draws = chosen
    count = 1
    for values in candidates.values():
        count *= len(values)
    if not 0 < count <= MOST:
        st.warning(
            f"{count} configurations; allowed: 1 to {MOST}. Choose {'more' if not count else 'fewer'} candidates."
        )
        return
    asked_for = plan_of(scenario, load, candidates, requests=PROBE)
    key = ("plan", hash_of(scenario), load, str(sorted(candidates.items())), draws)
    name = " ".join(map(str, key))
    found: PlanResult | None = known_study(key)
    if found is None:
        if st.session_state.get("_plan") != name and not st.button(
            f"Search {count} configuration{'s' * (count > 1)}", type="primary", key="search plan"
        ):
            st.caption(
                "Each is simulated at several rates until its highest rate within the SLO is known; that takes a while."
            )
            return
        st.session_state["_plan"] = name

        def work(progress: Progress) -> PlanResult:
            return study(key, lambda: plan(asked_for, exhaustive=True, draws=draws, progress=progress))

        found = wait_for(name, "Searching configurations", work, "Search")
    if found is not None:
        _result(found, scenario.model)


def _choices(scenario: Scenario) -> tuple[float, dict[str, list[Any]], int] | None:
    """Show what may be chosen among, and return the load, the candidates and the draws."""
    workload = scenario.workload
    if workload is None or (workload.trace is None and not hasattr(workload.arrivals, "rate_per_s")):
        st.info(
            "A plan is for a rate of requests; a closed loop has none. Choose other arrivals in the sidebar."
        )
        return None
    if not (scenario.slo and scenario.slo.classes):
        st.info("A plan needs an SLO: name a scenario that has one.")
        return None
    base = scenario.device if isinstance(scenario.device, str) else str(scenario.device["base"])
    known = list(dict.fromkeys((base, *list_devices())))
    with st.container(border=True):
        st.markdown("What serves this load within the SLO of the sidebar, and what does it cost?")
        left, right = st.columns([1, 3])
        with left:
            load = st.number_input(
                "Load [requests/s]", 0.1, 100_000.0, 40.0, 10.0, key="load", bind="query-params"
            )
        with right:
            first = list(dict.fromkeys((base, *FIRST_DEVICES)))
            devices = st.multiselect(
                "GPUs", known, [each for each in first if each in known], key="gpus", bind="query-params"
            )
        columns = st.columns([1, 2, 1])
        with columns[0]:
            sizes = st.multiselect("Tensor parallel size", [1, 2, 4, 8], [1], key="tps", bind="query-params")
        with columns[1]:
            weights = st.multiselect("Weights", list(WEIGHTS), ["auto"], key="formats", bind="query-params")
        with columns[2]:
            sure = st.selectbox(
                "How sure", ["not drawn", "8 draws", "16 draws"], key="sure", bind="query-params",
                help="Chance that the best three meet the SLO, from draws of the hardware.",
            )  # fmt: skip
    candidates: dict[str, list[Any]] = {
        "device": devices,
        "tensor_parallel_size": sizes,
        "quantization": weights,
    }
    return float(load), candidates, 0 if sure == "not drawn" else int(str(sure).split()[0])


def _result(found: PlanResult, model: str) -> None:
    place = st.container()
    prices = _prices(found)
    measured = _measured(model)
    shown = repriced(found, prices)
    serving = [option for option in shown.options if option.serves]
    with place:
        if serving:
            st.markdown(f"**{answer_of(shown, serving[0])}**")
        else:
            st.warning(f"None of the {len(shown.options)} configurations serves the load within the SLO.")
    if serving:
        rows = plan_rows(shown.to_dict()["points"])
        beside = [*rows, *measured]
        left, right = st.columns(2)
        with left:
            chart("pareto", lambda: pareto(beside, height=320), "Output of a GPU against speed of a user")
        with right:
            chart("cost", lambda: cost_bars(rows, note="prices as below"), "Cost of a million output tokens",
                  empty="None of these has a price: give one below.")  # fmt: skip
        st.dataframe(_table(serving, shown), hide_index=True, width="stretch")
        st.caption(
            "Joule: of a replica at its highest rate; where a board was not measured, known to "
            "± 25 %. All tokens here are output tokens. "
            f"{shown.runs:,} simulations."
        )
    for line, count in reasons([option for option in shown.options if not option.serves]):
        st.caption(f"Left out: {line}" + (f" ({count} configurations)" if count > 1 else ""))


def _measured(model: str) -> Sequence[Row]:
    """Take a table of points that were measured of the sidebar's model, and return them for the chart."""
    with st.expander("Measured points beside the simulated", expanded=False, key="measured points"):
        file = st.file_uploader(
            "Table", type=["csv", "gz"], max_upload_size=LARGEST // 2**20, key="measured",
            help="Read, and forgotten with this page; nothing in it is executed.",
        )  # fmt: skip
        st.caption(
            "A table as for `membound validate`: TTFT/TPOT points by concurrency (run_id, gpu, model, engine, isl, "
            "osl, concurrency, ttft_ms, tpot_ms, tp_size) or served runs. Its rows of the sidebar's model are drawn "
            "at the load they were measured under, which need not be that of the plan."
        )
        if file is None:
            return []
        try:
            rows, note = measured_points(file.name, file.getvalue(), model)
        except MemboundError as error:
            st.error(str(error))
            return []
        st.caption(note)
        return rows


def _prices(found: PlanResult) -> dict[str, float]:
    """Show a price for each GPU, to be edited, and return them [USD/h]."""
    listed: dict[str, float | None] = {}
    for option in found.options:
        device = str(option.settings["device"])
        listed[device] = listed.get(device) or option.usd_per_gpu_hour
    with st.expander("Prices [USD per GPU hour]", expanded=False, key="prices"):
        edited: Any = st.data_editor(
            {"GPU": list(listed), "USD per GPU hour": list(listed.values())},
            disabled=["GPU"], hide_index=True, width="content", key=f"prices {found.name} {len(listed)}",
            column_config={"USD per GPU hour": st.column_config.NumberColumn(min_value=0.0, format="%.2f")},
        )  # fmt: skip
        st.caption("Dated list prices; what you pay goes here, and nothing is searched anew.")
    pairs = zip(edited["GPU"], edited["USD per GPU hour"], strict=True)
    return {str(device): float(price) for device, price in pairs if price is not None}


def _table(options: list[Option], found: PlanResult) -> dict[str, list[str]]:
    columns: dict[str, list[str]] = {}
    for rank, option in enumerate(options, 1):
        low, high = option.rate_span or (0.0, 0.0)
        chance = option.meets_slo_probability
        row: Mapping[str, str] = {
            "": f"{rank}{' *' if option.pareto else ''}",
            **{key.rpartition(".")[2]: str(value) for key, value in option.settings.items()},
            "GPUs": f"{option.gpus:,}",
            "USD/h": _text(option.usd_per_hour),
            "USD per M output": _text(option.usd_per_million_output_tokens),
            "J per output token": _text(option.joule_per_output_token),
            "requests/s each": f"{number(low)} … {number(high)}" if low else DASH,
            "tokens/s/user": _text(option.tokens_per_s_per_user),
            "tokens/s/GPU": _text(option.tokens_per_s_per_gpu),
            "meets SLO": DASH if chance is None else percent(chance),
            "known": option.level or DASH,
        }
        for name, text in row.items():
            columns.setdefault(name, []).append(text)
    return columns


def _text(value: float | None) -> str:
    return DASH if value is None else number(value)
