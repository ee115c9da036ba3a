"""How accurate predictions are on rows that no fit has seen: errors, intervals and what a datasheet swap predicts.

A lane is judged on the parts of the frozen splits, or on folds: one model, one size, left out at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ..hwmodels.device import DeviceProfile
from ..hwmodels.steptypes import chip_of
from ..hwmodels.timing.form import Chip
from .fit.base import Array, FitResult, Model, errors
from .fit.moe import expert_rows
from .predict import OPERATIONS, Group, group_model, groups_of, software_of
from .publiclanes import PublicLane
from .table import Column, KernelTable, Mask, concat
from .uncertainty import Predictive, coverage_figures, of_fit, of_lane

Bar = tuple[float | None, float | None, float | None]
"""Upper limits of MAPE, median and 90th percentile [%]; None for none."""
IN_RANGE: Final = (0.85, 0.95)
"""Share of rows that a 90 % interval should hold inside the calibrated range [-]."""
OUTSIDE: Final = 0.80
"""Least share outside the calibrated range [-]."""
WIDTH_PER_BAR: Final = 2.1
"""Most that the median half width may be, over the MAPE bar [-]."""
FEWEST_COVERED: Final = 30
"""Coverage of fewer rows is not held against a bar."""


@dataclass(frozen=True, slots=True)
class Judged:
    """Errors and intervals on some rows; errors are fractions, predicted/measured - 1.

    Attributes
    ----------
    part : ``train``, ``unseen``, ``beyond``, or what was left out
    n, n_inside : rows, and those of them inside the calibrated range
    errors : ``mape``, ``median_ape``, ``p90_ape``, ``bias``
    covered : ``coverage_90`` inside the range, ``coverage_90_outside``, ``median_half_width``; None for no rows
    """

    part: str
    n: int
    n_inside: int
    errors: Mapping[str, float]
    covered: Mapping[str, float | None]

    def misses(self, bar: Bar) -> list[str]:
        """Return what misses a bar, by name; empty where all is met. A row without a prediction misses every bar.

        Examples
        --------
        >>> found = Judged("unseen", 2, 2, {"mape": 0.07, "median_ape": 0.05, "p90_ape": 0.13}, {})
        >>> found.misses((6.5, None, 14.0))
        ['mape']
        """
        if all(limit is None for limit in bar):
            return []
        names = ("mape", "median_ape", "p90_ape")
        missed = [
            name
            for name, limit in zip(names, bar, strict=True)
            if limit is not None and not 100.0 * self.errors[name] <= limit
        ]
        inside, outside = self.covered.get("coverage_90"), self.covered.get("coverage_90_outside")
        width = self.covered.get("median_half_width")
        if inside is not None and self.n_inside >= FEWEST_COVERED:
            missed += [] if IN_RANGE[0] <= inside <= IN_RANGE[1] else ["in range"]
        if outside is not None and self.n - self.n_inside >= FEWEST_COVERED and outside < OUTSIDE:
            missed.append("outside")
        if width is not None and bar[0] is not None and 100.0 * width > WIDTH_PER_BAR * bar[0]:
            missed.append("width")
        return missed


def judge(part: str, rows: KernelTable, found: Predictive, among: Mask | None = None) -> Judged:
    """Compare predictions with the times of the rows they are of, or of some of them."""
    if among is not None:
        rows = rows.where(among)
        found = Predictive(found.time[among], found.sd[among], found.distance[among])
    covered = coverage_figures(rows.latency_us, found)
    return Judged(part, len(rows), int(found.inside.sum()), errors(found.time / rows.latency_us), covered)


def predicted(device: DeviceProfile, rows: KernelTable) -> Predictive:
    """Return the times of rows by a device's lanes with their spread; NaN where there is no lane or form."""
    time, sd, distance = (np.full(len(rows), np.nan) for _ in range(3))
    for group in groups_of(device, rows):
        if not isinstance(group, Group):
            continue
        part, operation = rows.take(group.rows), OPERATIONS[group.op]
        model = group_model(device, group, part)
        regimes, axes = operation.regimes(part, chip_of(device)), operation.axes(part)
        found = of_lane(device, group.lane, model, regimes=regimes, axes=axes)
        time[group.rows], sd[group.rows], distance[group.rows] = found.time, found.sd, found.distance
    return Predictive(time, sd, distance)


def lanes_of(table: KernelTable) -> Column:
    """Return ``family/lane`` of each row, empty for operations without a form.

    Examples
    --------
    >>> rows = KernelTable.of({"op": ["gemm"], "framework": ["vllm"], "dtype": ["bfloat16"], "latency_us": [3.0]})
    >>> lanes_of(rows).tolist()
    ['gemm/vllm']
    """
    names, software = np.full(len(table), "", dtype=object), software_of(table)
    for op in set(table["op"].tolist()) & OPERATIONS.keys():
        rows = np.flatnonzero(table["op"] == op)
        part = table.take(rows)
        families, lanes = OPERATIONS[op].family(part), OPERATIONS[op].lane(part, software[rows])
        names[rows] = [f"{family}/{lane}" for family, lane in zip(families, lanes, strict=True)]
    return names


def lane_predicted(lane: PublicLane, fit: FitResult, rows: KernelTable) -> Predictive:
    """Return the times of a public lane's rows under a fit, with their spread."""
    operation = OPERATIONS[lane.op]
    regimes, axes = operation.regimes(rows, lane.chip), operation.axes(rows)
    return of_fit(fit, _lane_model(lane, rows), regimes=regimes, axes=axes)


def _lane_model(lane: PublicLane, rows: KernelTable) -> Model:
    if lane.op != "moe":
        return lambda params: lane.predict_us(params, rows)
    chip, ready = lane.chip, expert_rows(rows)  # the routing of each row is worked out once
    return lambda params: ready.predict_us(chip, params)


def left_out(
    table: KernelTable,
    groups: NDArray[Any],
    predict: Callable[[KernelTable, KernelTable], Predictive],
    scored: int | None = None,
) -> tuple[KernelTable, Predictive]:
    """Return the rows of a table, each group predicted from all others.

    Parameters
    ----------
    table : rows
    groups : group of each row, shape (n,)
    predict : from the rows that a fit may see and those left out to predictions of the latter
    scored : most rows of a group to predict
    """
    held, found = list[KernelTable](), list[Predictive]()
    for group in np.unique(groups):
        rows = table.where(groups == group)
        held.append(rows if scored is None else rows.sample(scored))
        found.append(predict(table.where(groups != group), held[-1]))
    return concat(held), _joined(found)


def _joined(parts: Iterable[Predictive]) -> Predictive:
    columns = zip(*((part.time, part.sd, part.distance) for part in parts), strict=True)
    return Predictive(*(np.concatenate(column) for column in columns))


Predict = Callable[[Chip, KernelTable], Array]
"""From a datasheet and rows to times [us]."""


def speed_up_errors(
    source: tuple[Chip, KernelTable],
    target: tuple[Chip, KernelTable],
    predict: Predict,
    *,
    by: Sequence[str] = ("m", "n", "k"),
    rows: int | None = None,
) -> tuple[int, dict[str, float]]:
    """Return how many rows two devices share, and the errors of the speed-up that a datasheet swap predicts.

    Parameters
    ----------
    source, target : datasheet and measured rows of each device
    predict : times under the parameters of the source
    by : columns that make a row the same row
    rows : most rows to compare, drawn from the target's

    Examples
    --------
    >>> from membound.hwmodels.device import load_device
    >>> h100 = chip_of(load_device("h100_sxm"))
    >>> gemm = KernelTable.of({"op": ["gemm"], "m": [1], "n": [64], "k": [64], "latency_us": [3.0]})
    >>> n, found = speed_up_errors((h100, gemm), (h100, gemm), lambda chip, table: table.latency_us)
    >>> n, found["mape"]
    (1, 0.0)
    """
    before, after = matched(source[1], target[1], by)
    if rows is not None and len(after) > rows:
        chosen = np.sort(np.random.default_rng(0).choice(len(after), rows, replace=False))
        before, after = before.take(chosen), after.take(chosen)
    measured = before.latency_us / after.latency_us
    return len(after), errors(predict(source[0], before) / predict(target[0], after) / measured)


def matched(one: KernelTable, other: KernelTable, by: Sequence[str]) -> tuple[KernelTable, KernelTable]:
    """Return the rows of two tables that agree in some columns, in the same order; the first of equal rows counts."""
    keys = (list(zip(*(table[name].tolist() for name in by), strict=True)) for table in (one, other))
    at_one, at_other = ({key: row for row, key in reversed(list(enumerate(each)))} for each in keys)
    shared = sorted(at_one.keys() & at_other.keys())
    first, second = ([at[key] for key in shared] for at in (at_one, at_other))
    return one.take(np.array(first, dtype=np.int64)), other.take(np.array(second, dtype=np.int64))
