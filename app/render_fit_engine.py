"""A fit of an engine's step parameters as text or JSON: estimates with errors, runs before, after and left out."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..sim.output.output import to_json
from .text import csv_of, table, text_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..calibrate.enginefit import EngineFit, Estimate

_MILLI: Final = {"s": (1e3, " ms")}
_NAMES: Final = {
    "ttft_mean": "TTFT",
    "tpot_mean": "TPOT",
    "e2e_mean": "E2E",
    "throughput": "rate",
    "sum": "all steps",
    "step_mape": "a step",
}


def render_fit(found: EngineFit, form: str, out: Path | None) -> str:
    """Return the report of a fit."""
    if form == "json":
        return to_json(found.to_dict() | {"file": None if out is None else str(out)})
    if form == "csv":
        return csv_of([dict(each) for each in found.to_dict()["estimates"]])
    cells = [_estimate(each) for each in found.estimates]
    lines = [
        f"step parameters of {found.base.id}",
        "",
        *table(["parameter", "began at", "estimate", "stderr", "jackknife", ""], cells, right=range(1, 5)),
        "",
    ]
    names = list(dict.fromkeys(name for each in found.outcomes for name in each.after))
    header = [
        "run",
        *(_NAMES.get(name, name) for name in names),
        "left out:",
        *(_NAMES.get(n, n) for n in names),
    ]
    rows = [
        [
            each.run_id + ("" if each.fitted else " (not fitted)"),
            *(_percent(each.after, name) for name in names),
            None,
            *(_percent(each.left_out or {}, name) for name in names),
        ]
        for each in found.outcomes
    ]
    lines += table(header, rows, right=range(1, len(header)))
    lines += ["", "errors: simulated / measured - 1 in %; left out: of a fit to the other runs alone"]
    lines += list(found.notes)
    return text_of([*lines, *([f"engine file: {out}"] if out else [])])


def _estimate(each: Estimate) -> list[str | None]:
    factor, unit = _MILLI.get(each.unit, (1.0, ""))

    def shown(value: float | None) -> str | None:
        return None if value is None or not math.isfinite(value) else f"{factor * value:.3g}{unit}"

    said = "" if each.known else "the runs tell less of it than the profile did"
    return [each.name, shown(each.start), shown(each.value), shown(each.stderr), shown(each.jackknife), said]


def _percent(errors: Mapping[str, float], name: str) -> str | None:
    return f"{100 * errors[name]:+.1f}" if name in errors else None
