"""From the ``workload`` section to the requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..fields import WorkloadError
from ..random import uniform
from .arrivals.base import ArrivalProcess
from .arrivals.closed_loop import ClosedLoop
from .sessions import session_prompts
from .spec import WorkloadSpec
from .trace.formats import Wanted
from .trace.read import read_trace
from .workload import LATEST_NS, ClosedLoopLoad, Follows, LoadReport, Workload


def build_workload(
    spec: WorkloadSpec, seed: int = 0, *, slo_classes: Sequence[str] = (), turnaround_s: float = 0.0
) -> Workload:
    """Read or draw the requests that a ``workload`` section asks for.

    Parameters
    ----------
    spec : the section
    seed : the scenario's seed
    slo_classes : classes a trace may name; () allows any
    turnaround_s : time a client needs between an answer and its next request, beside thinking [s]

    Raises
    ------
    WorkloadError : a trace that cannot be read, a workload without requests

    >>> spec = WorkloadSpec.model_validate({
    ...     "arrivals": {"kind": "poisson", "rate_per_s": 8}, "input_tokens": 900, "output_tokens": 150,
    ...     "requests": 3})
    >>> [request.input_tokens for request in build_workload(spec).iter_requests()]
    [900, 900, 900]
    """
    load = _trace_load(spec, slo_classes) if spec.trace is not None else None
    if load is not None and spec.arrivals is None:
        return _capped(load, spec, turnaround_s)
    process = spec.arrivals
    if process is None:
        raise WorkloadError("workload needs arrivals, or a trace")
    times = process.times_s(seed, len(load)) if load is not None else _drawn_times(spec, process, seed)
    if not len(times):
        raise WorkloadError(f"workload: no request arrives within duration_s = {spec.duration_s:g}")
    if not times[-1] <= LATEST_NS / 1e9:
        raise WorkloadError(
            f"workload.arrivals: request {len(times) - 1} would arrive {times[-1]:.3g} s after the first; allowed: up "
            "to 146 years"
        )
    arrival_ns = np.rint(times * 1e9).astype(np.int64)
    closed = _closed_loop(process, seed, turnaround_s)
    if load is not None:
        report = replace(load.report, time_unit="s", origin=f"arrivals drawn: {process.name}")
        load = replace(load, arrival_ns=arrival_ns, closed_loop=closed, report=report)
    else:
        load = _drawn(spec, seed, arrival_ns, closed, turnaround_s)
    return _capped(load, spec, turnaround_s)


def _capped(load: Workload, spec: WorkloadSpec, turnaround_s: float) -> Workload:
    """Return the load as a client sends it that keeps at most ``max_concurrency`` requests in flight."""
    if spec.max_concurrency is None:
        return load
    places = ClosedLoopLoad(spec.max_concurrency, turnaround_ns=round(turnaround_s * 1e9), keeps_times=True)
    return replace(load, closed_loop=places)


def _trace_load(spec: WorkloadSpec, slo_classes: Sequence[str]) -> Workload | None:
    trace = spec.trace
    if trace is None:
        return None
    wanted = Wanted(trace.path, trace.format, spec.arrivals is None, trace.part, trace.same_prompt)
    return read_trace(wanted, time_scale=trace.time_scale, limit=trace.limit, slo_classes=slo_classes)


def _drawn(
    spec: WorkloadSpec,
    seed: int,
    arrival_ns: NDArray[np.int64],
    closed: ClosedLoopLoad | None,
    turnaround_s: float,
) -> Workload:
    if spec.input_tokens is None or spec.output_tokens is None or spec.arrivals is None:
        raise WorkloadError("workload needs arrivals, input_tokens and output_tokens, or a trace")
    if spec.sessions is not None and spec.sessions.think_time_s is not None:
        each = spec.sessions.requests_each
        begun = arrival_ns if spec.requests is None else arrival_ns[: -(-spec.requests // each)]
        arrival_ns = np.repeat(begun, each)[: spec.requests]
    indices = range(len(arrival_ns))
    answers = spec.output_tokens.draw(seed, "output_tokens", indices)
    report = LoadReport(f"{spec.arrivals.name} arrivals, seed {seed}", "generated", rows=len(arrival_ns))
    tenant = _tenants(spec, seed, len(arrival_ns))
    if spec.sessions is None:
        prompts = spec.input_tokens.draw(seed, "input_tokens", indices)
        return Workload(arrival_ns, prompts, answers, report, tenant=tenant, closed_loop=closed)
    asked = session_prompts(spec.sessions, spec.input_tokens, answers, seed)
    follows = None
    if asked.pause_ns is not None:
        later = asked.pause_ns >= 0
        pauses = asked.pause_ns + round(turnaround_s * 1e9)
        follows = Follows(np.where(later, np.arange(len(later)) - 1, -1), np.where(later, pauses, 0))
    return Workload(
        arrival_ns,
        asked.input_tokens,
        answers,
        report,
        session=asked.session,
        tenant=tenant,
        prefix=asked.prefix,
        answers_shared=asked.answers_too,
        closed_loop=closed,
        follows=follows,
    )


def _tenants(spec: WorkloadSpec, seed: int, count: int) -> NDArray[np.int64] | None:
    """Draw whose request each is, shape (n,): numbers in the order of ``tenants``."""
    if spec.tenants is None:
        return None
    weights = np.cumsum(list(spec.tenants.values()))
    place = np.searchsorted(weights / weights[-1], uniform(seed, "tenants", range(count)), side="right")
    return np.minimum(place, len(weights) - 1).astype(np.int64)


def _drawn_times(spec: WorkloadSpec, process: ArrivalProcess, seed: int) -> NDArray[np.float64]:
    """Draw arrivals until ``requests`` or ``duration_s`` is reached [s]."""
    if spec.duration_s is None:
        return process.times_s(seed, spec.requests or 0)
    if isinstance(process, ClosedLoop):
        raise WorkloadError(
            "workload: a closed loop has no arrival times to cut at duration_s; give requests"
        )
    count = 1024
    while True:
        count = min(count, spec.requests or count)
        times = process.times_s(seed, count)
        if count == spec.requests or times[-1] >= spec.duration_s:
            return times[times < spec.duration_s]
        count *= 4


def _closed_loop(process: ArrivalProcess, seed: int, turnaround_s: float) -> ClosedLoopLoad | None:
    if not isinstance(process, ClosedLoop):
        return None
    return ClosedLoopLoad(
        concurrency=process.concurrency,
        think_time_ns=round(process.think_time_s * 1e9),
        exponential=process.think_time == "exponential",
        turnaround_ns=round(turnaround_s * 1e9),
        seed=seed,
    )
