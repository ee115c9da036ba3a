"""A device number scaled step by step, as text: what each step brings, and where the time goes then."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..sim.output.output import to_json
from ..sim.studies.effects import metric_word
from .render import SHARE_WORDS
from .render_explain import write
from .text import csv_of, labelled, table, text_of

if TYPE_CHECKING:
    from ..sim.studies.scaling import Scaled, Scaling

SHOWN = 2
"""Causes of time that a step names, and limits of the batch."""


def render_scaling(found: Sequence[Scaling], form: str) -> str:
    """Return curves as ``table``, ``json`` or ``csv``."""
    if form == "json":
        return to_json({"curves": [curve.to_dict() for curve in found]})
    if form == "csv":
        return csv_of([_row(curve, point) for curve in found for point in curve.points])
    return text_of(_lines(found))


def _row(curve: Scaling, point: Scaled) -> dict[str, Any]:
    row = {"name": curve.name, "number": curve.number, "factor": point.factor, curve.metric: point.value}
    row |= {"elasticity": point.elasticity, **point.metrics}
    for section in ("time_share", "limiter"):
        row |= {f"{section}.{name}": share for name, share in asdict(point)[section].items()}
    return row | {"bound": point.bound, "stability": point.stability, "error": point.error or None}


def _lines(found: Sequence[Scaling]) -> Iterator[str]:
    first = found[0]
    yield from labelled("", f"{first.name} · {first.requests:,} requests in every run (seed {first.seed})")
    for curve in found:
        yield ""
        header = [curve.number, metric_word(curve.metric), "slope", "time goes to", "batch limited by"]
        yield from table(header, [_cells(curve, point) for point in curve.points], right=[0, 1, 2])
    yield ""
    for curve in found:
        yield from labelled("answer", curve.answer)
    told = "what-if devices keep what was fitted to the base; none of them was measured"
    yield from labelled("prediction", f"{told}; slope: share gained for each share that the number grows by")


def _cells(curve: Scaling, point: Scaled) -> list[str | None]:
    value = None if point.value is None else write(curve.metric, point.value)
    slope = None if point.elasticity is None else f"{point.elasticity:.2f}"
    return [f"x{point.factor:g}", value, slope, point.error or _most(point.time_share), _most(point.limiter)]


def _most(shares: Mapping[str, float]) -> str:
    names = sorted(shares, key=lambda name: -shares[name])[:SHOWN]
    return ", ".join(
        f"{SHARE_WORDS.get(name, name.replace('_', ' '))} {100 * shares[name]:.0f} %"
        for name in names
        if shares[name] >= 0.01
    )
