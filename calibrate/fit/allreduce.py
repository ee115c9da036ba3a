"""Fit of the all-reduce: the two regimes over all group sizes, with the measured table beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ...hwmodels.lanes import LatencyTable
from ...hwmodels.timing.allreduce import AllReduceParams, allreduce_seconds
from ...hwmodels.timing.form import Chip, LaneLike
from ..localspread import spread_by_regime
from ..table import KernelTable, concat
from .base import Array, FitResult, Parameter, hull_of, robust_fit
from .gemm import Values

_START: Final = {"a0_us": 5.0, "a1_us": 0.2, "bl": 0.4, "c0_us": 12.0, "c1_us": 0.5, "bb": 0.7}
_BOUNDS: Final[dict[str, tuple[float, float]]] = {
    "a0_us": (0.05, 500.0), "a1_us": (0.005, 50.0), "bl": (0.01, 1.2), "c0_us": (0.05, 1000.0),
    "c1_us": (0.005, 100.0), "bb": (0.01, 1.2),
}  # fmt: skip


def allreduce_parameters() -> list[Parameter]:
    """Return starts and priors of an all-reduce lane: wide, because links and launch modes differ by factors."""
    params = [Parameter(name, value, 1.5, *_BOUNDS[name]) for name, value in _START.items()]
    return [*params, Parameter("q", 4.0, vary=False)]


def predict_allreduce_us(chip: Chip, lane: LaneLike, table: KernelTable) -> Array:
    """Return the time of all-reduce rows [us]: by the lane's table where it has one, else by the form."""
    params, (size,) = AllReduceParams.from_lane(lane), table.numbers("bytes")
    out = np.empty(len(table))
    for group in set(table["world_size"].tolist()):
        rows = table["world_size"] == group
        out[rows] = allreduce_seconds(chip, params, size[rows], group)
    return out * 1e6


def latency_table(table: KernelTable) -> LatencyTable:
    """Return measured rows as a grid of sizes by group size; equal rows are averaged in the logarithm."""
    sizes = sorted(set(table["bytes"].tolist()))
    rows: dict[int, tuple[float | None, ...]] = {}
    for group in sorted(set(table["world_size"].tolist())):
        of_group = table.where(table["world_size"] == group)
        found = {
            size: float(np.exp(np.mean(np.log(of_group.latency_us[of_group["bytes"] == size]))))
            for size in set(of_group["bytes"].tolist())
        }
        rows[group] = tuple(round(found[size], 3) if size in found else None for size in sizes)
    return LatencyTable(sizes=tuple(float(size) for size in sizes), latency_us=rows)


def fit_allreduce_least_squares(
    table: KernelTable, chip: Chip, *, lane: str = "vllm", **options: Any
) -> FitResult:
    """Fit an all-reduce lane of one launch mode over all its group sizes; see ``fit_gemm_least_squares``."""

    def model(values: Mapping[str, float]) -> Array:
        return predict_allreduce_us(chip, Values(values), table)

    sizes, groups = table.numbers("bytes", "world_size")
    found = robust_fit(
        model,
        allreduce_parameters(),
        table.latency_us,
        family="allreduce",
        lane=lane,
        hull=hull_of(bytes=sizes, group=groups),
        notes=("the table is preferred to the form where it reaches; residual: sizes left out of it",),
        **options,
    )
    rows, ratio = leave_one_size_out(table, chip, found.params)
    spread = spread_by_regime(np.log(ratio), allreduce_regimes(rows))
    return replace(found, table=latency_table(table), residual_sd=spread)


def allreduce_regimes(table: KernelTable) -> NDArray[Any]:
    """Return the regime of each row by message: libraries change their algorithm in the second and in the fourth."""
    edges = np.array([64 * 1024, 2 * 2**20, 16 * 2**20])
    return np.array(["small", "medium", "large", "bulk"])[
        np.searchsorted(edges, table["bytes"], side="right")
    ]


def leave_one_size_out(
    table: KernelTable, chip: Chip, params: Mapping[str, float]
) -> tuple[KernelTable, Array]:
    """Return rows and predicted/measured of the table's interpolation, each size of a group left out in turn [-].

    The ends of a group's range are left out too, and then carried on by the form's own growth.
    """
    parts: list[KernelTable] = []
    ratios: list[Array] = []
    for size in sorted(set(table["bytes"].tolist())):
        out = table["bytes"] == size
        grid = latency_table(table.where(~out))
        held = table.where(out)
        known = np.isin(held["world_size"], list(grid.latency_us))
        held = held.where(known)
        lane = TableValues(params, grid)
        parts.append(held)
        ratios.append(predict_allreduce_us(chip, lane, held) / held.latency_us)
    return concat(parts), np.concatenate(ratios)


@dataclass(frozen=True, slots=True)
class TableValues:
    """Parameter values and a measured table, as a timing function reads a lane."""

    params: Mapping[str, float]
    table: LatencyTable | None = None
