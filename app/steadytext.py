"""The steady state of a run, and its windows of arrival time, as text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from .text import DASH, LABEL, milliseconds, number, percent, table

ROWS: tuple[tuple[str, str], ...] = (("TTFT", "ttft_s"), ("TPOT", "tpot_s"), ("E2E", "e2e_s"))
WINDOW_COLUMNS: tuple[tuple[str, str], ...] = (
    ("TTFT p50", "ttft_s_p50"), ("TTFT p99", "ttft_s_p99"), ("TPOT p50", "tpot_s_p50"),
)  # fmt: skip
MAX_WINDOWS = 48


def steady_state(summary: Mapping[str, Any]) -> list[str]:
    """Return the means with half the width of their confidence intervals; nothing where none is known."""
    found: Mapping[str, Any] = summary.get("steady_state") or {}
    ends: Mapping[str, Sequence[float] | None] = found.get("interval") or {}
    said: list[str] = []
    for label, metric in ROWS:
        span = ends.get(f"{metric}.mean")
        if span is not None:
            said.append(
                f"{label} {plus_minus(found[metric]['mean'] * 1e3, (span[1] - span[0]) / 2 * 1e3)} ms"
            )
    if not said:
        return []
    return [
        *said,
        f"({percent(found['level']).replace('.0', '')}, {found['requests']:,} requests{_warmup(found)})",
    ]


def plus_minus(value: float, half: float) -> str:
    """Return a value and half the width of its interval, to two significant digits of the latter.

    >>> plus_minus(60.2836, 3.3504), plus_minus(2059.5, 119.3)
    ('60.3 ± 3.4', '2,060 ± 119')
    """
    digits = max(0, 1 - math.floor(math.log10(half))) if half > 0 else 3
    return f"{value:,.{digits}f} ± {half:,.{digits}f}"


def _warmup(found: Mapping[str, Any]) -> str:
    return f" after {number(found['warmup_s'])} s of warm-up" if found["warmup_s"] else ""


def window_table(summary: Mapping[str, Any]) -> list[str]:
    """Return one row a window of arrivals, latencies in ms; at most 48, and how many more the JSON has."""
    rows: Sequence[Mapping[str, Any]] = summary.get("windows") or ()
    if not rows:
        return []
    header = [
        "arrivals [s]",
        "requests",
        "per s",
        *(f"{name} [ms]" for name, _ in WINDOW_COLUMNS),
        "within SLO",
    ]
    shown = [
        [
            f"{number(row['start_s'])} to {number(row['end_s'])}",
            f"{row['requests']:,}",
            number(row["requests_per_s"]),
            *(DASH if row[key] is None else milliseconds(row[key]) for _, key in WINDOW_COLUMNS),
            DASH if row["attainment"] is None else percent(row["attainment"]),
        ]
        for row in rows[:MAX_WINDOWS]
    ]
    lines = table(header, shown, right=range(1, len(header)), widths=[LABEL - 1])
    rest = len(rows) - len(shown)
    return [*lines, *([f"and {rest:,} more in --format json"] if rest else [])]
