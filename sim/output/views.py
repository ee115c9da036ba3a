"""A run as rows for pictures: few of them, whatever its length; see ``buckets`` for how time is cut."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..books.record import CAUSES, LIMITERS
from ..metrics.figures import NS_PER_S
from .buckets import Array, levels, spread, step_level, waiting_level
from .view import BUCKETS, View

Row = dict[str, Any]
MONITORS: Mapping[str, str] = {
    "gpu_util": "kernel_busy_ns",
    "sm_active": "sm_active_ns",
    "tensor_active": "tensor_active_ns",
    "dram_active": "dram_active_ns",
}
"""What a monitoring tool shows -> column of ``steps.parquet``."""


def share_rows(view: View, buckets: int = BUCKETS) -> list[Row]:
    """Return the shares of wall time by cause over time: ``t_s``, ``t2_s``, ``cause``, ``share``, 1 in all."""
    if view.steps is None:
        return []
    edges = view.edges(buckets)
    width = np.diff(edges) * view.parts
    spent = {
        cause: spread(view.steps, f"{cause}_ns", edges) / width
        for cause in CAUSES
        if f"{cause}_ns" in view.steps
    }
    spent["idle"] = np.maximum(1.0 - np.sum(list(spent.values()), axis=0), 0.0)
    return [
        {**_bucket(view, edges, at), "cause": cause, "share": float(share[at])}
        for cause, share in spent.items()
        if share.any()
        for at in range(buckets)
    ]


def monitor_rows(view: View, buckets: int = BUCKETS) -> list[Row]:
    """Return what monitoring tools would show over time: ``t_s``, ``t2_s``, ``monitor``, ``share``."""
    steps = view.steps
    if steps is None or not all(column in steps for column in MONITORS.values()):
        return []
    edges = view.edges(buckets)
    width = np.diff(edges) * view.parts
    return [
        {**_bucket(view, edges, at), "monitor": name, "share": float(share[at])}
        for name, column in MONITORS.items()
        for share in (spread(steps, column, edges) / width,)
        for at in range(buckets)
    ]


def cause_rows(summaries: Mapping[str, Mapping[str, Any]]) -> list[Row]:
    """Return label -> summary as ``scenario``, ``cause``, ``share`` of wall time, for scenarios side by side."""
    return [
        {"scenario": label, "cause": cause, "share": float(share)}
        for label, summary in summaries.items()
        for cause, share in _figures(summary, "time_share").items()
        if share
    ]


def limiter_rows(summaries: Mapping[str, Mapping[str, Any]]) -> list[Row]:
    """Return label -> summary as ``scenario``, ``limiter``, ``share`` of busy time."""
    return [
        {"scenario": label, "limiter": name, "share": float(share)}
        for label, summary in summaries.items()
        for name, share in _figures(summary, "limiter").items()
        if share
    ]


def limiter_time_rows(view: View, buckets: int = BUCKETS) -> list[Row]:
    """Return what kept the batch from being larger over time, as shares of wall time: ``limiter``, ``share``."""
    steps = view.steps
    if steps is None:
        return []
    edges = view.edges(buckets)
    found: list[Row] = []
    for code, name in enumerate(LIMITERS):
        spent = steps["duration_ns"] * (steps["limiter"] == code)
        share = spread({**steps, "spent_ns": spent}, "spent_ns", edges) / np.diff(edges) / view.parts
        if share.any():
            found += [
                {**_bucket(view, edges, at), "limiter": name, "share": float(share[at])}
                for at in range(buckets)
            ]
    return found


def position_rows(view: View, buckets: int = BUCKETS) -> list[Row]:
    """Return the gap before output tokens by position: ``position``, ``itl_ms`` (mean by emissions), ``emissions``."""
    if view.positions is None or not len(view.positions["position"]):
        return []
    position, count = view.positions["position"], view.positions["emissions"]
    total = view.positions["itl_s"] * count
    place = np.minimum((position - 1) * buckets // max(int(position.max()), 1), buckets - 1)
    sums = [np.bincount(place, weights=each, minlength=buckets) for each in (total, count, position * count)]
    return [
        {
            "position": float(sums[2][at] / sums[1][at]),
            "itl_ms": float(sums[0][at] / sums[1][at] * 1e3),
            "emissions": int(sums[1][at]),
        }
        for at in np.flatnonzero(sums[1])
    ]


def timeline_rows(view: View, buckets: int = BUCKETS) -> dict[str, list[Row]]:
    """Return panel -> rows over time with ``t_s``, ``t2_s``, ``series``, ``low``, ``mean``, ``high``.

    Panels: ``requests`` (running, waiting) [requests]; ``kv`` (used, held) [share of the pool]; ``step`` [ms];
    ``tokens`` (prefill, decode) [tokens/s]; ``preemptions`` [in the bucket]; ``transfers`` (in, out) [B/s], where
    there were any.
    """
    edges = view.edges(buckets)
    waiting = _banded(view, edges, "waiting", *waiting_level(view.requests))
    steps = view.steps
    if steps is None:
        return {"requests": waiting}
    panels: dict[str, list[Row]] = {
        "requests": _banded(view, edges, "running", *step_level(steps, "running")) + waiting
    }
    blocks = _figures(view.summary, "memory").get("usable_blocks") or 0
    if blocks:
        panels["kv"] = [
            row
            for name in ("held", "used")
            for times, values in (step_level(steps, f"{name}_blocks"),)
            for row in _banded(view, edges, name, times, values / (blocks * view.replicas))
        ]
    panels["step"] = _by_start(view, edges, "step", steps["duration_ns"] / 1e6)
    seconds = np.diff(edges) / NS_PER_S
    rates = {"tokens": {"decode": "n_decode", "prefill": "prefill_tokens"}}
    rates["transfers"] = {"in": "kv_in_bytes", "out": "kv_out_bytes"}
    for panel, columns in rates.items():
        for name, column in columns.items():
            if column in steps and steps[column].any():
                rows = _flat_rows(view, edges, name, spread(steps, column, edges) / seconds)
                panels.setdefault(panel, []).extend(rows)
    if "preempted" in steps and steps["preempted"].any():
        counts, _ = np.histogram(steps["start_ns"], edges, weights=steps["preempted"])
        panels["preemptions"] = [row for row in _flat_rows(view, edges, "preemptions", counts) if row["mean"]]
    return panels


def waterfall_rows(view: View, requests: int = 40, around_s: float | None = None) -> list[Row]:
    """Return what requests lived through: ``request``, ``start_s``, ``end_s``, ``phase``, ``preemptions``.

    Phases are ``queue``, ``prefill``, ``decode``, and over it ``stalled by prefill``: steps in which somebody else's
    prompt was computed too, which is what makes gaps between tokens long.

    Parameters
    ----------
    requests : how many are shown, in order of arrival
    around_s : the middle one arrives about then; default: the middle of the run [s after the first arrival]
    """
    source = view.requests
    served = np.flatnonzero(source["first_token_ns"] >= 0)
    if not len(served):
        return []
    served = served[np.argsort(source["arrival_ns"][served], kind="stable")]
    middle = (view.start_ns + view.end_ns) / 2 if around_s is None else view.start_ns + around_s * NS_PER_S
    at = int(np.searchsorted(source["arrival_ns"][served], middle))
    first = max(min(at - requests // 2, len(served) - requests), 0)
    chosen = served[first : first + requests]
    found: list[Row] = []
    for number in chosen.tolist():
        moments = [
            int(source[name][number])
            for name in ("arrival_ns", "first_scheduled_ns", "first_token_ns", "last_token_ns")
        ]
        row = {
            "request": int(source["index"][number]),
            "input_tokens": int(source["input_tokens"][number]),
            "output_tokens": int(source["output_tokens"][number]),
            "preemptions": int(source["num_preemptions"][number]),
        }
        phases = zip(("queue", "prefill", "decode"), moments, moments[1:], strict=False)
        spans = [(phase, start, end) for phase, start, end in phases if end > start]
        spans += [("stalled by prefill", *span) for span in _stalls(view, number, moments[2], moments[3])]
        found += [
            row | {"phase": phase, "start_s": _since(view, start), "end_s": _since(view, end)}
            for phase, start, end in spans
        ]
    return found


def _stalls(view: View, number: int, start_ns: int, end_ns: int) -> list[tuple[int, int]]:
    """Return when, between two moments, prompts of others were computed; spans closer than 1/200 of it are one."""
    steps = view.steps
    if steps is None or end_ns <= start_ns:
        return []
    which = (steps["prefill_tokens"] > 0) & (steps["start_ns"] >= start_ns) & (steps["start_ns"] < end_ns)
    if "replica" in steps and "replica" in view.requests:
        which &= steps["replica"] == view.requests["replica"][number]
    starts = steps["start_ns"][which]
    ends = np.minimum(starts + steps["duration_ns"][which], end_ns)
    apart = np.append(True, starts[1:] - ends[:-1] > (end_ns - start_ns) / 200) if len(starts) else starts > 0
    last = np.append(np.flatnonzero(apart)[1:] - 1, len(starts) - 1) if len(starts) else starts
    return list(zip(starts[apart].tolist(), ends[last].tolist(), strict=True))


def latency_rows(view: View, points: int = 400) -> list[Row]:
    """Return how the latencies of completed requests are spread: ``metric``, ``seconds``, ``share`` at most that."""
    names = {"TTFT": "ttft_s", "TPOT": "tpot_s", "E2E": "e2e_s"}
    done = view.requests["status"] == "completed"
    found: list[Row] = []
    for metric, column in names.items():
        values = np.sort(view.requests[column][done].astype(np.float64))
        values = values[np.isfinite(values)]
        if len(values):
            ranks = np.unique(np.linspace(0, len(values) - 1, points).astype(np.int64))
            found += [
                {"metric": metric, "seconds": float(values[rank]), "share": (rank + 1) / len(values)}
                for rank in ranks.tolist()
            ]
    return found


def _figures(summary: Mapping[str, Any], section: str) -> dict[str, Any]:
    return summary.get(section) or {}


def _bucket(view: View, edges: Array, at: int) -> Row:
    return {"t_s": _since(view, edges[at]), "t2_s": _since(view, edges[at + 1])}


def _since(view: View, time_ns: float) -> float:
    return float((time_ns - view.start_ns) / NS_PER_S)


def _banded(view: View, edges: Array, series: str, times: Array, values: Array) -> list[Row]:
    if not len(times):
        return []
    if times[0] > edges[0]:
        times, values = np.concatenate((edges[:1], times)), np.concatenate((values[:1] * 0, values))
    low, mean, high = levels(times, values, edges)
    return [
        {
            **_bucket(view, edges, at),
            "series": series,
            "low": float(low[at]),
            "mean": float(mean[at]),
            "high": float(high[at]),
        }
        for at in range(len(mean))
    ]


def _flat_rows(view: View, edges: Array, series: str, values: Array) -> list[Row]:
    return [
        {**_bucket(view, edges, at), "series": series, "low": float(v), "mean": float(v), "high": float(v)}
        for at, v in enumerate(values)
    ]


def _by_start(view: View, edges: Array, series: str, values: Array) -> list[Row]:
    """Return least, mean and largest value of the steps that start in each bucket; none where none does."""
    assert view.steps is not None
    place = np.clip(np.searchsorted(edges, view.steps["start_ns"], side="right") - 1, 0, len(edges) - 2)
    order = np.argsort(place, kind="stable")
    held, first = np.unique(place[order], return_index=True)
    sorted_values = values[order]
    low, high = (each.reduceat(sorted_values, first) for each in (np.minimum, np.maximum))
    mean = np.add.reduceat(sorted_values, first) / np.diff(np.append(first, len(sorted_values)))
    return [
        {
            **_bucket(view, edges, int(at)),
            "series": series,
            "low": float(low[i]),
            "mean": float(mean[i]),
            "high": float(high[i]),
        }
        for i, at in enumerate(held)
    ]
