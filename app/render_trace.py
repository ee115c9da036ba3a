"""A trace as text: what is in it, and a picture of its arrivals and lengths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..sim.output.output import to_json
from .text import csv_of, labelled, number, percent, table, text_of

if TYPE_CHECKING:
    from ..sim.workload.workload import Workload

BARS = "▁▂▃▄▅▆▇█"
COLUMNS = 60
LENGTHS = ("mean", "min", "p50", "p90", "p99", "max", "sum")


def render_trace(workload: Workload, form: str) -> str:
    """Return what a workload holds."""
    found = workload.summary()
    if form == "json":
        return to_json(found)
    if form == "csv":
        return csv_of([_flat(found)])
    lines = [
        *labelled("", " · ".join([found["source"], found["format"], f"{found['rows']:,} requests"])),
        *labelled("arrivals", _arrivals(found)),
        *labelled("clock", _clock(found)),
        *labelled("left out", [f"{count:,} {why}" for why, count in found["dropped"].items()]),
        *labelled("prefixes", _prefixes(found)),
        *labelled("classes", _classes(workload)),
        *(line for note in found["warnings"] for line in labelled("warning", note)),
        "",
        *table(
            ["tokens", *LENGTHS],
            [[name.split("_")[0], *_lengths(found[name])] for name in ("input_tokens", "output_tokens")],
            right=range(1, len(LENGTHS) + 1),
        ),
        *_rate_picture(workload),
    ]
    return text_of(lines)


def _flat(found: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in found.items():
        if isinstance(value, Mapping):
            flat |= {f"{key}.{inner}": figure for inner, figure in value.items()}
        else:
            flat[key] = " | ".join(value) if isinstance(value, list) else value
    return flat


def _arrivals(found: Mapping[str, Any]) -> list[str]:
    if found["time_unit"] == "none":
        return ["none in the file; to replay its lengths, give workload.arrivals (--request-rate)"]
    if found["rate_per_s"] is None:
        return ["all at once"]
    said = [f"{number(found['rate_per_s'])} a second over {number(found['span_s'])} s"]
    if found["gap_cv"] is not None:
        said.append(f"gaps vary {number(found['gap_cv'])} x their mean (1 is Poisson)")
    return [*said, f"longest gap {number(found['max_gap_s'])} s"]


def _clock(found: Mapping[str, Any]) -> str:
    return "" if found["time_unit"] == "none" else f"unit {found['time_unit']}, starts at {found['origin']}"


def _prefixes(found: Mapping[str, Any]) -> str:
    share = found["repeated_prefix_share"]
    if share is None:
        return ""
    return f"{percent(share)} of all full prompt blocks came before: the most a prefix cache can hit"


def _classes(workload: Workload) -> str:
    return ", ".join(workload.slo_classes) if workload.slo_class is not None else ""


def _lengths(found: Mapping[str, float]) -> list[str]:
    return [f"{found[name]:,.0f}" for name in LENGTHS]


def _rate_picture(workload: Workload) -> list[str]:
    """Draw the arrival rate over time: one bar for each sixtieth of the span."""
    times = workload.arrival_ns
    span = int(times[-1] - times[0]) if len(times) else 0
    if span == 0:
        return []
    counts, _ = np.histogram(times - times[0], bins=COLUMNS, range=(0, span))
    most = int(counts.max())
    bars = "".join(" " if n == 0 else BARS[(int(n) * len(BARS) - 1) // most] for n in counts)
    per_s = most / (span / COLUMNS / 1e9)
    note = f"each bar {number(span / COLUMNS / 1e9)} s, the highest {number(per_s)} a second"
    return ["", *labelled("arrivals", bars.replace(" ", "·")), *labelled(" ", note)]
