"""Scenarios side by side as text: what differs, every figure with its change, and what each run waited for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ..sim.output.output import to_json
from ..sim.studies.point import is_mean_latency, is_share
from .render import LEVELS, SHARE_WORDS, notes, quotes_means
from .text import DASH, LABEL, WIDTH, csv_of, gib, labelled, milliseconds, number, percent, table, text_of

if TYPE_CHECKING:
    from ..sim.studies.compare import Comparison
    from ..sim.studies.point import Point

Write = Callable[[float], str]
COLUMN = 15
BESIDE = 4
"""Scenarios beside the base in one block of columns."""
SMALL = 0.0005
"""A share below this rounds to nothing."""
FOLD = 2.0
"""A change of this factor or more is written as a factor."""


def _whole(count: float) -> str:
    return f"{count:,.0f}" if float(count).is_integer() else number(count)


ROWS: tuple[tuple[str, tuple[tuple[str, str, Write], ...]], ...] = (
    ("latency [ms]", (
        ("TTFT", "latency.ttft_s.mean", milliseconds), ("TTFT p99", "latency.ttft_s.p99", milliseconds),
        ("TPOT", "latency.tpot_s.mean", milliseconds), ("ITL p99", "latency.itl_s.p99", milliseconds),
        ("E2E", "latency.e2e_s.mean", milliseconds), ("E2E p99", "latency.e2e_s.p99", milliseconds),
    )),
    ("rate", (
        ("requests/s", "throughput.requests_per_s", number),
        ("output tok/s", "throughput.output_tokens_per_s", number),
        ("output tok/s/GPU", "throughput.output_tokens_per_s_per_gpu", number),
    )),
    ("requests", (
        ("completed", "requests.completed", _whole), ("rejected", "requests.rejected", _whole),
        ("preemptions", "requests.preemptions", _whole), ("SLO met by", "slo.attainment", percent),
        ("goodput/s", "slo.goodput_per_s", number),
    )),
    ("cost [USD]", (
        ("per M output tok", "cost.usd_per_million_output_tokens", number),
        ("per M tok", "cost.usd_per_million_tokens", number),
    )),
    ("utilization", (
        ("mfu", "utilization.mfu", percent), ("mbu", "utilization.mbu", percent),
        ("gpu_util", "utilization.gpu_util", percent), ("dram_active", "utilization.dram_active", percent),
    )),
    ("memory [GiB]", (
        ("weights", "memory.weights_bytes", gib), ("KV pool", "memory.kv_pool_bytes", gib),
    )),
    ("KV", (
        ("tokens", "memory.kv_capacity_tokens", _whole), ("peak usage", "kv.peak_usage", percent),
        ("mean usage", "kv.mean_usage", percent), ("reserved waste", "kv.waste_reserved", percent),
        ("internal waste", "kv.waste_internal", percent),
        ("external waste", "kv.waste_external", percent),
        ("waste in all", "kv.waste", percent), ("prefix hits", "kv.prefix_hit_rate", percent),
    )),
)  # fmt: skip
CONSTANT: tuple[str, ...] = (
    "requests.rejected", "requests.preemptions", "throughput.output_tokens_per_s_per_gpu",
    "memory.weights_bytes", "kv.waste_reserved", "kv.waste_internal", "kv.waste_external", "kv.prefix_hit_rate",
)  # fmt: skip
"""Rows that are shown only where the scenarios differ in them."""


def render_comparison(found: Comparison, form: str, *, color: bool = False) -> str:
    """Return a comparison as ``table``, ``json`` or ``csv``, with a final newline."""
    if form == "json":
        return to_json(found.to_dict())
    if form == "csv":
        return csv_of([_csv_row(point) for point in found.points])
    return text_of(_lines(found, color))


def _csv_row(point: Point) -> dict[str, Any]:
    row: dict[str, Any] = {"label": point.label, "hash": point.hash, "level": point.level}
    row |= {"error": point.error, **{f"settings.{key}": value for key, value in point.settings.items()}}
    row |= point.metrics
    row |= {f"change.{name}": value for name, value in point.change.items()}
    for name, (low, high) in point.change_interval.items():
        row |= {f"change.{name}.low": low, f"change.{name}.high": high}
    return row


def _lines(found: Comparison, color: bool) -> Iterator[str]:
    letters = [_letter(at) for at in range(len(found.points))]
    for letter, point in zip(letters, found.points, strict=True):
        yield from labelled(letter, _named(point, first=point is found.points[0]), strong=color)
    base, *rest = zip(letters, found.points, strict=True)
    groups = [rest[at : at + BESIDE] for at in range(0, len(rest), BESIDE)] or [[]]
    for group in groups:
        yield ""
        yield from _block([base, *group], found)
    yield ""
    for letter, point in zip(letters, found.points, strict=True):
        yield from labelled(f"answer {letter}", point.error or str(point.summary["verdict"]["sentence"]))
    yield from labelled("prediction", _known(found))
    yield from _notes(letters, found.points)


def _letter(at: int) -> str:
    """Return A to Z, then AA, AB, …

    >>> _letter(0), _letter(26)
    ('A', 'AA')
    """
    return (_letter(at // 26 - 1) if at >= 26 else "") + chr(ord("A") + at % 26)


def _named(point: Point, *, first: bool) -> str:
    settings = [f"{key} {_short(value)}" for key, value in point.settings.items()]
    said = ", ".join(settings) or ("" if first else "the same settings")
    return point.label + (f": {said}" if said else "")


def _short(value: object) -> str:
    text = "null" if value is None else str(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _block(columns: Sequence[tuple[str, Point]], found: Comparison) -> Iterator[str]:
    """Yield one table: a row a metric, a column a scenario, each with its change against the first."""
    points = [point for _, point in columns]
    header = ["", *(letter for letter, _ in columns)]
    rows: list[list[str]] = []
    for title, metrics in (*ROWS, *_shares(found)):
        shown = [each for each in metrics if _shown(each[1], found)]
        if not shown:
            continue
        rows.append([title, *[""] * len(columns)])
        for word, metric, write in shown:
            rows.append([f"  {word}", *(_cell(point, points[0], metric, write) for point in points)])
            spans = [_span(point, metric, write, first=point is points[0]) for point in points]
            if any(spans):
                rows.append(["", *spans])
    width = min(COLUMN, (WIDTH - LABEL - 4) // len(columns) - 2)
    yield from table(
        header, rows, right=range(1, len(columns) + 1), widths=[LABEL + 3, *[width] * len(columns)]
    )


def _shares(found: Comparison) -> Iterator[tuple[str, tuple[tuple[str, str, Write], ...]]]:
    """Yield the rows of where the time went and of what limited the batch, of what shows anywhere."""
    for title, section in (("time spent", "time_share."), ("batch limit", "limiter.")):
        most: dict[str, float] = {}
        for point in found.points:
            for name, value in point.metrics.items():
                if name.startswith(section) and value:
                    most[name] = max(most.get(name, 0.0), value)
        known = sorted((name for name in most if most[name] >= SMALL), key=lambda name: -most[name])
        words = [(name.removeprefix(section), name) for name in known]
        yield title, tuple((SHARE_WORDS.get(w, w.replace("_", " ")), name, percent) for w, name in words)


def _shown(metric: str, found: Comparison) -> bool:
    values = [point.metrics.get(metric) for point in found.points if not point.error]
    if all(value is None for value in values):
        return False
    return metric not in CONSTANT or len({value or 0 for value in values}) > 1


def _cell(point: Point, base: Point, metric: str, write: Write) -> str:
    value = point.metrics.get(metric)
    if value is None or hidden(point, metric):
        return DASH
    if point is base:
        return write(value)
    change = "" if hidden(base, metric) else change_text(metric, point.change.get(metric, 0.0))
    return f"{write(value)} {change:>6}"


def hidden(point: Point, metric: str) -> bool:
    """Tell whether a figure is a mean latency of a run without a steady state, which is not quoted."""
    return is_mean_latency(metric) and not (point.error or quotes_means(point.summary))


def change_text(metric: str, change: float) -> str:
    """Write a change: points of a share, percent, or a factor; nothing where there is none.

    >>> metric = "latency.ttft_s.mean"
    >>> change_text("kv.peak_usage", 0.123), change_text(metric, -0.2), change_text(metric, 6.4)
    ('+12.3', '-20%', 'x7.4')
    """
    if not change:
        return ""
    if is_share(metric):
        return f"{100 * change:+.1f}"
    if not 1 / FOLD < change + 1 < FOLD:
        return f"x{change + 1:.{max(0, 1 - _magnitude(change + 1))}f}"
    return f"{100 * change:+.1f}%" if abs(change) < 0.1 else f"{100 * change:+.0f}%"


def _magnitude(factor: float) -> int:
    return math.floor(math.log10(factor)) if factor > 0 else 0


def _span(point: Point, metric: str, write: Write, *, first: bool) -> str:
    """Write the interval of a change; of the first scenario, that of its value."""
    ends = (point.interval if first else point.change_interval).get(metric)
    if ends is None or ends[0] == ends[1]:
        return ""
    return "..".join(write(end) if first else change_text(metric, end) for end in ends)


def _known(found: Comparison) -> str:
    levels = [point.level for point in found.points if point.level]
    worst = max(levels, key=list(LEVELS).index, default=None)
    said = f"{worst}: {LEVELS[worst]}" if worst else ""
    if found.draws:
        return f"{said}; 90 % intervals from {found.draws} common draws of what is not known of the hardware"
    if found.repeat > 1:
        return f"{said}; means of {found.repeat} seeds, 90 % intervals from runs paired by seed"
    return f"{said}; --repeat 8 adds intervals over loads, --draws 32 over what is not known of the hardware"


def _notes(letters: Sequence[str], points: Sequence[Point]) -> Iterator[str]:
    """Yield each warning once, with the scenarios it is about."""
    about: dict[str, list[str]] = {}
    for letter, point in zip(letters, points, strict=True):
        for note in () if point.error else notes(point.summary):
            about.setdefault(note, []).append(letter)
    for note, named in about.items():
        where = "" if len(named) == len(points) else f"{', '.join(named)}: "
        yield from labelled("note", where + note)


def labels_of(paths: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return a label for each scenario: its name, and its file where names repeat or are missing."""
    return [
        name if name and names.count(name) == 1 else f"{name} ({path})" if name else path
        for path, name in zip(paths, names, strict=True)
    ]
