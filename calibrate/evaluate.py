"""A device profile against a table of measured kernels: errors and coverage by operation, dtype and lane."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from ..hwmodels.device import DeviceProfile
from ..hwmodels.steptypes import chip_of
from .fit.base import errors
from .predict import OPERATIONS, Group, group_model, groups_of
from .screen import screen
from .table import KernelTable
from .uncertainty import coverage_figures, of_lane

_INTERVAL_ROWS: Final = 4000
"""Rows on which coverage is worked out: it needs the derivative by every parameter."""
_LEVELS: Final = ("measured", "bridged", "prior", "transferred_same_arch", "transferred_cross_arch")


@dataclass(frozen=True, slots=True)
class Evaluated:
    """Errors of one operation, dtype, framework and lane; errors are fractions, predicted/measured - 1.

    Attributes
    ----------
    n, excluded : rows compared, and rows left out by the screen
    mape, median_ape, p90_ape, bias : mean, median and 90th percentile of the absolute error, and the mean error
    coverage_90, coverage_90_outside : share of rows inside their 90 % interval, in the calibrated range and outside
    median_half_width : of the interval, over the prediction
    level : how well the device's lane is known
    """

    op: str
    dtype: str
    framework: str
    lane: str
    n: int
    excluded: int
    mape: float | None
    median_ape: float | None
    p90_ape: float | None
    bias: float | None
    coverage_90: float | None
    coverage_90_outside: float | None
    median_half_width: float | None
    level: str
    kv_dtype: str = ""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A table against a device.

    Attributes
    ----------
    device : id
    level : the least certain level among the groups
    groups : errors, in the order of the table
    screened : one line for each reason for which rows were left out
    skipped : operation, rows and reason where there is no lane or no form
    """

    device: str
    level: str
    groups: tuple[Evaluated, ...]
    screened: tuple[str, ...]
    skipped: tuple[tuple[str, int, str], ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "device": self.device,
            "level": self.level,
            "groups": [asdict(group) for group in self.groups],
            "screened": list(self.screened),
            "skipped": [{"op": op, "n": n, "reason": reason} for op, n, reason in self.skipped],
        }


def evaluate(
    device: DeviceProfile, table: KernelTable, *, lane: str | None = None, intervals: bool = True
) -> Evaluation:
    """Compare a device's predictions with a measured table.

    Parameters
    ----------
    device : profile, its own lanes or transferred ones
    table : rows in the long schema; impossible ones are left out and counted
    lane : software lane to take for all rows; default: each row's framework
    intervals : also work out coverage and width of the 90 % intervals
    """
    screened = screen(table, device)
    keys = _keys(table)
    dropped = [key for key, kept in zip(keys, screened.kept.tolist(), strict=True) if not kept]
    groups: list[Evaluated] = []
    skipped: list[tuple[str, int, str]] = []
    for group in groups_of(device, screened.table, lane):
        if not isinstance(group, Group):
            skipped.append(group)
            continue
        found = _keys(screened.table.take(group.rows))
        for key in dict.fromkeys(found):
            rows = group.rows[[each == key for each in found]]
            part = Group(group.op, group.family, group.lane, rows)
            excluded = dropped.count(key)
            dropped = [each for each in dropped if each != key]
            groups.append(_evaluated(device, part, screened.table.take(rows), excluded, intervals))
    level = max((group.level for group in groups), key=_rank, default="none")
    return Evaluation(device.id, level, tuple(groups), tuple(screened.lines()), tuple(skipped))


def _keys(table: KernelTable) -> list[tuple[str, ...]]:
    columns = (table[name].tolist() for name in ("op", "dtype", "kv_dtype", "framework"))
    return list(zip(*columns, strict=True))


def _evaluated(
    device: DeviceProfile, group: Group, rows: KernelTable, excluded: int, intervals: bool
) -> Evaluated:
    predicted = group_model(device, group, rows)(group.lane.params)
    found = errors(predicted / rows.latency_us)
    covered: dict[str, float | None] = dict.fromkeys(
        ("coverage_90", "coverage_90_outside", "median_half_width")
    )
    if intervals:
        covered = _coverage(device, group, rows)
    return Evaluated(
        op=group.op,
        dtype=str(rows["dtype"][0]),
        framework=str(rows["framework"][0]),
        lane=group.lane.lane,
        n=len(rows),
        excluded=excluded,
        **found,
        **covered,
        level=group.lane.level,
        kv_dtype=str(rows["kv_dtype"][0]),
    )


def _coverage(device: DeviceProfile, group: Group, rows: KernelTable) -> dict[str, float | None]:
    """Return coverage and width of a group's intervals, on a sample of its rows."""
    sample, operation = rows.sample(_INTERVAL_ROWS), OPERATIONS[group.op]
    with np.errstate(all="ignore"):
        predicted = of_lane(
            device,
            group.lane,
            group_model(device, group, sample),
            regimes=operation.regimes(sample, chip_of(device)),
            axes=operation.axes(sample),
        )
    return coverage_figures(sample.latency_us, predicted)


def _rank(level: str) -> int:
    return _LEVELS.index(level) if level in _LEVELS else len(_LEVELS)
