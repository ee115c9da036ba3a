"""Calibration as text or JSON: a plan of timings, the fits of a run, a profile against measured kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..sim.output.output import to_json
from .text import csv_of, table, text_of

if TYPE_CHECKING:
    from ..calibrate.design import Plan
    from ..calibrate.evaluate import Evaluated, Evaluation
    from ..calibrate.run import CalibrationRun

_FIGURES = (
    "mape",
    "median_ape",
    "p90_ape",
    "bias",
    "coverage_90",
    "coverage_90_outside",
    "median_half_width",
)


def render_plan(plan: Plan, form: str) -> str:
    """Return a plan: one line a lane, or every shape."""
    if form == "table":
        return plan.describe() + "\n"
    points = [
        {"id": each.id, "role": each.role, "planned_s": each.seconds, **each.shape.as_dict()}
        for each in plan.points
    ]
    if form == "csv":
        names = list(dict.fromkeys(name for point in points for name in point))
        return csv_of([{name: point.get(name) for name in names} for point in points])
    return to_json(
        {
            "device": plan.machine.id,
            "budget_s": plan.budget_s,
            "skipped": dict(plan.skipped),
            "points": points,
        }
    )


def render_run(run: CalibrationRun, form: str) -> str:
    """Return the fits of a run: a report, JSON, or one CSV line a parameter."""
    if form == "json":
        return to_json(run.to_dict())
    if form == "csv":
        return csv_of(
            [
                {
                    "family": fit.family,
                    "lane": fit.lane,
                    "parameter": name,
                    "value": value.estimate,
                    "stderr": value.stderr,
                    "start": value.start,
                    "identified": value.identified,
                }
                for fit in run.fits
                for name, value in fit.values.items()
            ]
        )
    return run.report()


def render_evaluation(found: Evaluation, form: str) -> str:
    """Return errors and coverage by operation, dtype and lane."""
    groups = [_row(group) for group in found.groups]
    if form == "json":
        return to_json({**_plain(found.to_dict()), "groups": groups})
    if form == "csv":
        return csv_of(groups)
    header = [
        "op",
        "dtype",
        "framework",
        "lane",
        "n",
        "excl",
        "MAPE %",
        "median",
        "p90",
        "bias",
        "in 90 %",
        "outside",
        "± %",
    ]
    cells = [_cells(group) for group in found.groups]
    lines = [f"{found.device}: {found.level}", "", *table(header, cells, right=range(4, len(header)))]
    notes = [*found.screened, *_skipped(found.skipped)]
    return text_of([*lines, *([""] if notes else []), *notes])


def _row(group: Evaluated) -> dict[str, Any]:
    names = ("op", "dtype", "kv_dtype", "framework", "lane", "n", "excluded", *_FIGURES, "level")
    return {name: _plain(getattr(group, name)) for name in names}


def _plain(value: Any) -> Any:
    """Return None for a figure that is not known, so that JSON can say so."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _cells(group: Evaluated) -> list[str | None]:
    dtype = group.dtype + (f"/{group.kv_dtype}" if group.kv_dtype not in ("", group.dtype) else "")
    shares = (group.coverage_90, group.coverage_90_outside, group.median_half_width)
    errors = (group.mape, group.median_ape, group.p90_ape)
    return [
        group.op,
        dtype,
        group.framework or "-",
        group.lane + ("" if group.level == "measured" else "*"),
        str(group.n),
        str(group.excluded),
        *(_percent(value) for value in errors),
        None if group.bias is None else f"{100 * group.bias:+.1f}",
        *(_percent(value, digits=0) for value in shares),
    ]


def _percent(value: float | None, digits: int = 1) -> str | None:
    return None if value is None or not math.isfinite(value) else f"{100 * value:.{digits}f}"


def _skipped(skipped: Sequence[tuple[str, int, str]]) -> list[str]:
    return [f"not compared: {n} rows of {op}: {reason}" for op, n, reason in skipped]
