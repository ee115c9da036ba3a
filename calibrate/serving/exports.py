"""Results of load generators (``vllm bench serve``, AIPerf, guidellm, or any measured trace) as one run to play."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np

from ...hwmodels.device import load_device
from ...hwmodels.engine import load_engine
from ...hwmodels.model import load_model
from ...hwmodels.plainjson import plain_json
from ...sim.fields import WorkloadError
from ...sim.scenario.schema import Scenario
from ...sim.workload.trace.formats import Wanted
from ...sim.workload.trace.read import read_trace
from ...sim.workload.workload import Workload
from ..errors import CalibrationError
from .run import Label, ServedRun, scenario_of

SERVED = 0.97
"""Share of the rate at which requests came below which they were not served as they came."""


def served_export(path: Path, scenario: Scenario) -> ServedRun:
    """Return what a load generator wrote as a run to play on the server of a scenario.

    Its arrivals and lengths are replayed. Where it does not say when requests were sent, but how many were
    kept in flight, a closed loop of so many users sends them.

    Parameters
    ----------
    path : the export
    scenario : what served; its load is replaced, its sampling and routing stay

    Raises
    ------
    CalibrationError : the file measured nothing, or tells neither arrivals nor concurrency
    WorkloadError : it cannot be read
    """
    users: int | None = None
    try:
        load = read_trace(Wanted(str(path)))
    except WorkloadError as error:
        users = _concurrency(path)
        if users is None:
            raise CalibrationError(f"{error}; and it states no max_concurrency to send them at") from None
        load = read_trace(Wanted(str(path), needs_arrival=False))
    if not load.measured:
        raise CalibrationError(
            f"{path}: no measured TTFT or E2E of requests (vllm bench serve: --save-detailed)"
        )
    data = scenario.to_dict()
    workload: dict[str, Any] = {"trace": {"path": str(path)}}
    if users is not None:
        workload["arrivals"] = {"kind": "closed_loop", "concurrency": users}
    kept = data.get("workload") or {}
    workload |= {key: kept[key] for key in ("sampling", "expert_routing") if kept.get(key)}
    played = scenario_of(data | {"name": path.name, "workload": workload})
    measured, saturated = _rates(load) if users is None else ({}, "")
    notes = (f"{users} requests kept in flight" if users else "arrivals and lengths replayed",)
    return ServedRun(_label(path, played), played, measured, saturated=saturated, notes=notes)


def _label(path: Path, scenario: Scenario) -> Label:
    device, model, engine = (
        load_device(scenario.device).id,
        load_model(scenario.model).id,
        load_engine(scenario.engine).id,
    )
    return Label(path.name, device, model, engine, kind="export")


def _concurrency(path: Path) -> int | None:
    """Return the cap on requests in flight that a report of ``vllm bench serve`` states."""
    try:
        document: object = plain_json(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError):
        return None
    cap: object = (
        cast("dict[str, object]", document).get("max_concurrency") if isinstance(document, dict) else None
    )
    return cap if isinstance(cap, int) and cap > 0 else None


def _rates(load: Workload) -> tuple[dict[str, float], str]:
    """Return what was served a second, and why it was less than what came ("" if it was not)."""
    e2e = load.measured.get("e2e_s")
    if e2e is None or not np.isfinite(e2e).all() or len(load) < 2:
        return {}, ""
    arrival_s = load.arrival_ns / 1e9
    ended = float((arrival_s + e2e).max() - arrival_s[0])
    span = float(arrival_s[-1] - arrival_s[0])
    served = len(load) / ended
    came = len(load) / span if span > 0 else np.inf
    if ended - span > max(2 * float(np.median(e2e)), (1 - SERVED) * ended) and served < SERVED * came:
        return {"requests_per_s": served}, f"{came:.3g} requests/s came, {served:.3g}/s were served"
    return {"requests_per_s": served}, ""
