"""Errors of many runs together: medians and 90th percentiles, by any label, and the JSON form."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from .compare import ERRORS, RunErrors
from .run import LATENCIES, Skipped

GROUPS: dict[str, Callable[[RunErrors], str]] = {
    "gpu": lambda each: each.run.label.gpu,
    "model": lambda each: each.run.label.model,
    "engine": lambda each: each.run.label.engine,
    "part": lambda each: each.run.label.part or "-",
}
"""What runs are grouped by."""


def absolute_errors(runs: Iterable[RunErrors], name: str) -> list[float]:
    """Return the absolute errors that count of one figure; of latencies only unsaturated runs' do [-]."""
    latency = name.rpartition("_")[0] in LATENCIES
    return [
        abs(each.error[name]) for each in runs if name in each.error and not (latency and each.run.saturated)
    ]


def median(values: Sequence[float]) -> float | None:
    """Return the median, None of nothing."""
    return float(np.median(values)) if values else None


def p90(values: Sequence[float]) -> float | None:
    """Return the 90th percentile, None of nothing."""
    return float(np.percentile(values, 90)) if values else None


def totals(runs: Sequence[RunErrors]) -> dict[str, Any]:
    """Return count, medians and 90th percentiles of the absolute errors, coverage and half-widths."""
    errors = {name: absolute_errors(runs, name) for name in ERRORS}
    covered = {name: [each.covered[name] for each in runs if name in each.covered] for name in _covered(runs)}
    widths = {name: [each.half_width[name] for each in runs if name in each.half_width] for name in covered}
    return {
        "n": len(runs),
        "saturated": sum(bool(each.run.saturated) for each in runs),
        "median_abs_error": {name: median(values) for name, values in errors.items()},
        "p90_abs_error": {name: p90(values) for name, values in errors.items()},
        "coverage_90": {name: sum(values) / len(values) for name, values in covered.items() if values},
        "median_half_width": {name: median(values) for name, values in widths.items()},
    }


def _covered(runs: Sequence[RunErrors]) -> list[str]:
    return list(dict.fromkeys(name for each in runs for name in each.covered))


def grouped(runs: Sequence[RunErrors], by: str) -> dict[str, dict[str, Any]]:
    """Return the totals of each group that a label of ``GROUPS`` makes, in order of appearance."""
    label = GROUPS[by]
    names = dict.fromkeys(label(each) for each in runs)
    return {name: totals([each for each in runs if label(each) == name]) for name in names}


def worst(runs: Sequence[RunErrors], count: int = 5) -> list[RunErrors]:
    """Return the runs with the largest error of a mean or of throughput, largest first."""
    return sorted(runs, key=worst_error, reverse=True)[:count]


def worst_error(each: RunErrors) -> float:
    """Return the largest error of a run that counts: of means unless it is saturated, and of throughput [-]."""
    means = () if each.run.saturated else tuple(f"{name}_mean" for name in LATENCIES)
    return max((abs(each.error[name]) for name in (*means, "throughput") if name in each.error), default=0.0)


def payload(runs: Sequence[RunErrors], skipped: Sequence[Skipped]) -> dict[str, Any]:
    """Return what ``membound validate --format json`` prints."""
    found = totals(runs)
    return {
        "runs": [_row(each) for each in runs],
        "skipped": [
            {"run_id": each.label.run_id, "gpu": each.label.gpu, "model": each.label.model,
             "engine": each.label.engine, "part": each.label.part or None, "reason": each.reason}
            for each in skipped
        ],
        **{key: found[key] for key in ("median_abs_error", "p90_abs_error", "coverage_90", "median_half_width")},
        "groups": {by: grouped(runs, by) for by in GROUPS},
    }  # fmt: skip


def _row(each: RunErrors) -> dict[str, Any]:
    label = each.run.label
    return {
        "run_id": label.run_id,
        "gpu": label.gpu,
        "model": label.model,
        "engine": label.engine,
        "part": label.part or None,
        "saturated": bool(each.run.saturated),
        "level": each.level,
        "error": {name: each.error.get(name) for name in ERRORS},
        "per_request": {
            name: each.per_request.get(name) for name in ("ttft_mape", "e2e_mape", "ks_ttft", "ks_e2e")
        },
        "covered": dict(each.covered),
        "half_width": dict(each.half_width),
        "cause": each.cause or None,
        "notes": list(each.run.notes),
    }
