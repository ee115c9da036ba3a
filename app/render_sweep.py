"""The points of a study as text: one line each, what was varied first, then what came of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..sim.output.output import to_json
from ..sim.studies.point import is_mean_latency
from .render import quotes_means
from .text import csv_of, labelled, milliseconds, number, percent, table, text_of

if TYPE_CHECKING:
    from ..sim.studies.point import Point
    from ..sim.studies.sweep import Outlook, SweepResult

SHOWN = 60
"""Most points that a table shows."""
WIDEST = 28
"""Most letters of a varied value."""


COLUMNS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("TTFT p99", "latency.ttft_s.p99", milliseconds), ("TPOT", "latency.tpot_s.mean", milliseconds),
    ("E2E", "latency.e2e_s.mean", milliseconds), ("tok/s/GPU", "throughput.output_tokens_per_s_per_gpu", number),
    ("SLO", "slo.attainment", percent), ("USD/M out", "cost.usd_per_million_output_tokens", number),
)  # fmt: skip


def render_sweep(found: SweepResult, form: str, where: str) -> str:
    """Return the points of a study as ``table``, ``json`` or ``csv``; ``where`` holds what a table leaves out."""
    if form == "json":
        return to_json(found.to_dict())
    if form == "csv":
        return csv_of(found.rows())
    return text_of(_lines(found, where))


def render_outlook(outlook: Outlook, form: str) -> str:
    """Return what a sweep would do."""
    points = [outlook.plan.settings[at] for at in dict.fromkeys(at for at, _ in outlook.wanted)]
    counts = {"points": len(points), "runs": len(outlook.wanted), "to_do": len(outlook.tasks)}
    if form == "json":
        return to_json({"name": outlook.plan.name, **counts, "settings": points})
    if form == "csv":
        return csv_of(points)
    names = short_names(points)
    rows = [[value_text(point.get(key)) for key in names] for point in points[:SHOWN]]
    told = f"{counts['points']:,} points, {counts['runs']:,} runs, of which {counts['to_do']:,} are to do"
    left = [f"… and {len(points) - SHOWN:,} more"] if len(points) > SHOWN else []
    return text_of([*table(list(names.values()), rows), *left, *labelled("in all", told)])


def _lines(found: SweepResult, where: str) -> Iterator[str]:
    shown = found.points[:SHOWN]
    names = short_names([point.settings for point in found.points])
    columns = [each for each in COLUMNS if any(p.metrics.get(each[1]) is not None for p in found.points)]
    header = [*names.values(), *(_head(word) for word, _, _ in columns), "bound"]
    rows = [
        [
            *(value_text(point.settings.get(key)) for key in names),
            *(_cell(point, *each) for each in columns),
            _bound(point),
        ]
        for point in shown
    ]
    yield from table(header, rows, right=range(len(names), len(names) + len(columns)))
    if len(found.points) > SHOWN:
        yield f"… and {len(found.points) - SHOWN:,} more in {where}"
    told = f"{len(found.points):,} points; {found.ran:,} runs done, {found.found:,} kept from before"
    yield from labelled("in all", told)
    yield from _errors(found.points)
    levels = sorted({point.level for point in found.points if point.level})
    yield from labelled("prediction", "; ".join(levels))


def _head(word: str) -> str:
    return f"{word} [ms]" if word in ("TTFT p99", "TPOT", "E2E") else word


def short_names(settings: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return leaf -> the end of its name that no other leaf has."""
    leaves = list(dict.fromkeys(key for each in settings for key in each))
    found: dict[str, str] = {}
    for leaf in leaves:
        parts = leaf.split(".")
        ends = [".".join(parts[-size:]) for size in range(1, len(parts) + 1)]
        alone = [end for end in ends if sum(f".{other}".endswith(f".{end}") for other in leaves) == 1]
        found[leaf] = next((end for end in alone if end != "name"), leaf).removesuffix(".name")
    return found


def value_text(value: object) -> str | None:
    """Return a varied value as text; None where it was not set."""
    if value is None:
        return None
    if isinstance(value, float):
        return number(value)
    text = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, Mapping) else str(value)
    return text if len(text) <= WIDEST else text[: WIDEST - 3] + "..."


def _cell(point: Point, word: str, metric: str, write: Callable[[float], str]) -> str | None:
    value = point.metrics.get(metric)
    if value is None or (is_mean_latency(metric) and not quotes_means(point.summary)):
        return None
    span = point.interval.get(metric)
    spread = f" ±{percent((span[1] - span[0]) / 2 / value)}" if span and value and word != "SLO" else ""
    return write(value) + spread


def _bound(point: Point) -> str:
    verdict = point.summary["verdict"]
    bound = verdict["bound"] or "failed"
    return bound if quotes_means(point.summary) else f"{bound}, {verdict['stability']}"


def _errors(points: Sequence[Point]) -> Iterator[str]:
    """Yield each fault once, with the number of points that have it."""
    counts: dict[str, int] = {}
    for point in points:
        if point.error:
            counts[point.error] = counts.get(point.error, 0) + 1
    for error, count in counts.items():
        yield from labelled("error", error if count == 1 else f"{error} ({count} points)")
