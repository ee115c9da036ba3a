"""Figures as the pages write them: with their unit in the label, their interval beside them, a dash where unknown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...sim.studies.point import is_share
from ..render import LEVELS, SHARE_WORDS
from ..render_compare import ROWS, Write, change_text, hidden
from ..text import milliseconds, number, percent

if TYPE_CHECKING:
    from ...sim.studies.compare import Comparison
    from ...sim.studies.point import Point, Span

DASH = "–"
NOTHING = ("+0.0", "-0.0", "+0.0%", "-0.0%")
"""Changes that round to none."""


@dataclass(frozen=True, slots=True)
class Card:
    """A figure that stands out.

    Attributes
    ----------
    label : with its unit
    metric : dotted name in ``summary.json``
    write : value to text
    less_is_good : whether a fall is an improvement
    help : what it is
    """

    label: str
    metric: str
    write: Write
    less_is_good: bool
    help: str


CARDS = (
    Card("TTFT p99 [ms]", "latency.ttft_s.p99", milliseconds, True,
         "Arrival to first token; one request in a hundred waits longer."),
    Card("TPOT p50 [ms]", "latency.tpot_s.p50", milliseconds, True,
         "Mean time between the tokens of a request; the median over requests."),
    Card("Output tokens/s per GPU", "throughput.output_tokens_per_s_per_gpu", number, False,
         "Output tokens of completed requests, first arrival to last token."),
    Card("Within SLO", "slo.attainment", percent, False, "Share of the requests that met every threshold."),
    Card("USD per M output tokens", "cost.usd_per_million_output_tokens", number, True,
         "Price of all GPUs over the run, by million output tokens."),
)  # fmt: skip


def value_of(point: Point, metric: str, write: Write) -> str:
    """Write a figure; a dash where it is not known, or is a mean latency without a steady state."""
    value = point.metrics.get(metric)
    return DASH if value is None or hidden(point, metric) else write(value)


def span_of(span: Span | None, write: Write) -> str:
    """Write the ends of an interval; nothing where there is none or it has no width."""
    return "" if span is None or span[0] == span[1] else f"{write(span[0])} … {write(span[1])}"


def change_of(point: Point, base: Point, metric: str) -> str:
    """Write how far a figure is from that of another point; nothing where it is the same or not known."""
    if hidden(point, metric) or hidden(base, metric):
        return ""
    text = change_text(metric, point.change.get(metric, 0.0))
    if text in NOTHING:
        return ""
    return f"{text} points" if text and is_share(metric) else text.replace("%", " %").replace("x", "× ")


def table_of(found: Comparison) -> dict[str, list[str]]:
    """Return every figure of two scenarios as columns of text."""
    a, b = found.points
    columns: dict[str, list[str]] = {
        name: [] for name in ("figure", "A", "A, 90 %", "B", "B, 90 %", "change", "change, 90 %")
    }
    for title, metric, write in _rows(found):
        if a.metrics.get(metric) is None and b.metrics.get(metric) is None:
            continue
        change = b.change_interval.get(metric)
        shown = (
            title,
            value_of(a, metric, write),
            span_of(a.interval.get(metric), write),
            value_of(b, metric, write),
            span_of(b.interval.get(metric), write),
            change_of(b, a, metric),
            span_of(change, lambda end, metric=metric: change_text(metric, end) or "0"),
        )
        for column, text in zip(columns.values(), shown, strict=True):
            column.append(text)
    return columns if any(columns["A, 90 %"]) else {k: v for k, v in columns.items() if "90 %" not in k}


def _rows(found: Comparison) -> list[tuple[str, str, Write]]:
    rows = [
        (_named(word, title, metric), metric, write) for title, rows in ROWS for word, metric, write in rows
    ]
    for section, title in (("time_share", "time:"), ("limiter", "batch limit:")):
        names = {
            name
            for point in found.points
            for name, value in point.metrics.items()
            if name.startswith(f"{section}.") and value
        }
        rows += [(f"{title} {words(name)}", name, percent) for name in sorted(names)]
    return rows


def _named(word: str, title: str, metric: str) -> str:
    """Return what a row is called: with its statistic, and with the unit that its section states."""
    statistic = " mean" if metric.endswith(".mean") else ""
    unit = f" [{title.partition('[')[2]}" if "[" in title else ""
    return {"tokens": "KV pool [tokens]"}.get(word, f"{word}{statistic}{unit}")


def words(name: str) -> str:
    """Return a cause or a limiter as people read it.

    >>> words("time_share.hbm_kv"), words("limiter.max_num_seqs")
    ('HBM KV', 'max_num_seqs')
    """
    bare = name.rpartition(".")[2]
    return SHARE_WORDS.get(bare, bare if bare.startswith("max_") else bare.replace("_", " "))


def sure(summary: Mapping[str, Any]) -> str:
    """Say how well the parameters behind a run are known."""
    level = str(summary["confidence"]["level"])
    lanes: Mapping[str, str] = summary["confidence"].get("lanes") or {}
    least = ", ".join(name.replace("_", " ") for name, known in lanes.items() if known == level)
    said = f"{level}: {LEVELS.get(level, level)}"
    return said if set(lanes.values()) == {level} or not least else f"{said} ({least})"
