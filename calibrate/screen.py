"""What a table holds that no kernel can have taken: times that are none, and times faster than the datasheet.

Public tables are timed warm: what fits the last-level cache may arrive at the cache's rate, what does not must have
come from HBM. Rows that fail are left out of every fit and counted, with the reason and where they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from ..hwmodels.device import DeviceProfile
from ..hwmodels.steptypes import chip_of
from .costs import SHAPES, row_costs
from .fit.base import Array
from .table import KernelTable, Mask

TOLERANCE: Final = 1.03
"""How much faster than the datasheet a row may be: clocks above the quoted boost, rounding of the timer."""
CACHE_BYTES_PER_CLOCK: Final = 64.0
"""Most that one compute unit can take from the last-level cache in a clock [B]."""
_NO_CLOCK = 1.5e9
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Finding:
    """Rows that fail for one reason, by their place in the table (from 0)."""

    reason: str
    rows: tuple[int, ...]

    def line(self, total: int, origin: str) -> str:
        """Return one line: how many, why, and which."""
        shown = ", ".join(str(row + 1) for row in self.rows[:_SHOWN])
        more = ", …" if len(self.rows) > _SHOWN else ""
        where = f" of {origin}" if origin else ""
        plural = "row" if len(self.rows) == 1 else "rows"
        return f"excluded {len(self.rows)} of {total} rows{where}: {self.reason} ({plural} {shown}{more})"


@dataclass(frozen=True, slots=True)
class Screened:
    """A table without the rows that cannot be.

    Attributes
    ----------
    table : the rows that remain
    kept : which rows of the original they are
    findings : what was excluded, by reason
    """

    table: KernelTable
    kept: Mask
    findings: tuple[Finding, ...]

    @property
    def excluded(self) -> int:
        """Return how many rows were left out."""
        return int(np.sum(~self.kept))

    def lines(self) -> list[str]:
        """Return one line for each reason; none for a clean table."""
        return [finding.line(len(self.kept), self.table.origin) for finding in self.findings]


def screen(table: KernelTable, device: DeviceProfile | None = None) -> Screened:
    """Leave out rows whose time or shape cannot be.

    Parameters
    ----------
    table : rows as read or measured
    device : whose datasheet bounds the speed; without one only times and shapes are looked at

    Examples
    --------
    >>> table = KernelTable.of({"op": ["gemm"] * 3, "m": [1, 1, 1], "n": [8, 8, 8], "k": [8, 8, 8],
    ...                         "dtype": ["bfloat16"] * 3, "latency_us": [2.5, 0.0, float("nan")]})
    >>> for line in screen(table).lines():
    ...     print(line)
    excluded 1 of 3 rows: latency is missing or no number (row 3)
    excluded 1 of 3 rows: latency is zero (row 2)
    """
    left = np.ones(len(table), dtype=bool)
    findings: list[Finding] = []
    for reason, bad in _reasons(table, device):
        hit = bad & left
        if hit.any():
            findings.append(Finding(reason, tuple(np.flatnonzero(hit).tolist())))
            left &= ~hit
    return Screened(table.where(left), left, tuple(findings))


def _reasons(table: KernelTable, device: DeviceProfile | None) -> Iterator[tuple[str, Mask]]:
    time = table.latency_us
    yield "latency is missing or no number", np.isnan(time)
    yield "latency is infinite", np.isinf(time)
    yield "latency is zero", time == 0.0
    yield "latency is negative", time < 0.0
    yield "a size is missing, zero or negative", _without_shape(table)
    if device is not None:
        yield from _too_fast(table, device, np.where(time > 0.0, time, np.nan) * 1e-6)


def _without_shape(table: KernelTable) -> Mask:
    bad = np.zeros(len(table), dtype=bool)
    for op, columns in SHAPES.items():
        of_op = table["op"] == op
        for name in columns:
            bad |= of_op & (table[name] < 1)
    return bad


def _too_fast(table: KernelTable, device: DeviceProfile, seconds: Array) -> Iterator[tuple[str, Mask]]:
    sane = ~_without_shape(table)
    flop, moved = np.zeros(len(table)), np.zeros(len(table))
    costs = row_costs(table.where(sane))
    flop[sane], moved[sane] = costs.flop, costs.moved
    chip = chip_of(device)
    peak = np.full(len(table), np.inf)
    peak[sane] = [chip.peak(dtype) for dtype in costs.compute]
    cache_rate = CACHE_BYTES_PER_CLOCK * chip.units * (device.boost_hz or _NO_CLOCK)
    in_cache = moved <= chip.l2_bytes
    with np.errstate(invalid="ignore"):
        yield f"faster than the peak rate of {device.id}", flop / seconds > TOLERANCE * peak
        yield (
            f"faster than HBM of {device.id} for data above its last-level cache",
            ~in_cache & (moved / seconds > TOLERANCE * chip.bandwidth),
        )
        if cache_rate > chip.bandwidth and not chip.roofline3:
            yield (
                f"faster than the last-level cache of {device.id}",
                in_cache & (moved / seconds > TOLERANCE * cache_rate),
            )
