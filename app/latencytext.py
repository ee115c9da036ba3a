"""Cells of latency tables, and what a table says of steps that others on the device slowed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .text import DASH, milliseconds, number, percent

LATENCY_ROWS: tuple[tuple[str, str], ...] = (
    ("queue", "queue_s"), ("TTFT", "ttft_s"), ("TTFT at client", "client_ttft_s"), ("TPOT", "tpot_s"),
    ("ITL", "itl_s"), ("E2E", "e2e_s"),
)  # fmt: skip
LATENCY_COLUMNS: tuple[str, ...] = ("mean", "p50", "p90", "p95", "p99", "max")
WAITED_FOR: Mapping[str, str] = {"hbm": "HBM", "compute": "compute units", "link": "link"}


def latency_rows(latencies: Mapping[str, Any], quoted: bool) -> list[list[str]]:
    """Return a row of cells a metric [ms]; means only where they may be quoted."""
    return [
        [
            label,
            *(
                DASH if name == "mean" and not quoted else _cell(latencies[metric][name])
                for name in LATENCY_COLUMNS
            ),
        ]
        for label, metric in LATENCY_ROWS
    ]


def _cell(seconds: float | None) -> str:
    return DASH if seconds is None else milliseconds(seconds)


def contention(summary: Mapping[str, Any]) -> list[str]:
    """Say how much longer steps took because of others on the device, and what they waited for; nothing without."""
    found: Mapping[str, Any] = summary.get("contention") or {}
    if not found or found["slowdown"] is None:
        return []
    waits = ", ".join(
        f"{percent(share)} for {WAITED_FOR[name]}" for name, share in found["waited_share"].items() if share
    )
    slower = f"steps take {number(found['slowdown'])} times as long as alone"
    return [slower, *([f"of busy time they wait {waits}"] if waits else [])]
