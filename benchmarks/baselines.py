"""What a form of a kernel has to beat: the datasheet roofline, three parameters, a random forest and a grid.

Each takes the rows that the form's fit may see and returns a function from rows to times [us].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np
from membound.calibrate.costs import row_costs
from membound.calibrate.fit.base import Array
from membound.calibrate.fit.decode_attention import predict_decode_us
from membound.calibrate.fit.gemm import predict_gemm_us
from membound.calibrate.fit.prefill_attention import predict_prefill_us
from membound.calibrate.fit.roofline3 import fit_roofline3_least_squares
from membound.calibrate.table import KernelTable
from membound.hwmodels.timing.form import Chip
from scipy.interpolate import RegularGridInterpolator
from scipy.spatial import KDTree
from sklearn.ensemble import RandomForestRegressor

SHAPE: Final = ("m", "n", "k", "batch", "kv_len", "n_heads", "n_kv_heads", "head_dim", "window")
"""Columns that make a shape; of prefill without a prefix, ``kv_len`` is the query length too."""
ROWS: Final = 3000
"""Rows that three parameters are fitted to, as many as a form's."""
TREES: Final = 100

Baseline = Callable[[KernelTable], Array]


def roofline(train: KernelTable, chip: Chip) -> Baseline:
    """Return the datasheet's roofline: necessary FLOP over peak or bytes over bandwidth; nothing is fitted."""
    return lambda rows: roofline_us(chip, rows)


def roofline_us(chip: Chip, rows: KernelTable) -> Array:
    """Return the least time the datasheet allows each row [us]."""
    costs = row_costs(rows)
    peak = {dtype: chip.peak(dtype) for dtype in set(costs.compute.tolist())}
    compute = costs.flop / np.array([peak[dtype] for dtype in costs.compute])
    return np.maximum(compute, costs.moved / chip.bandwidth) * 1e6


def three_parameters(train: KernelTable, chip: Chip) -> Baseline:
    """Return a fixed time, a share of peak and a share of bandwidth, fitted; compute and memory time add up."""
    family, predict = _FORMS[str(train["op"][0])]
    fit = fit_roofline3_least_squares(family, train.sample(ROWS), chip)
    return lambda rows: predict(replace(chip, roofline3=True), fit.params, rows)


_FORMS: Final[dict[str, tuple[str, Callable[[Chip, Mapping[str, float], KernelTable], Array]]]] = {
    "gemm": ("gemm", partial(predict_gemm_us, warm=False)),
    "attn_decode": ("decode_attention", partial(predict_decode_us, warm=False)),
    "attn_prefill": ("prefill_attention", predict_prefill_us),
}


def forest(train: KernelTable, chip: Chip) -> Baseline:
    """Return a random forest from log shape, log FLOP and log bytes to log time."""
    model = RandomForestRegressor(TREES, n_jobs=1, random_state=0)
    model.fit(_features(train), np.log(train.latency_us))
    return lambda rows: np.exp(model.predict(_features(rows)))


def _features(rows: KernelTable) -> Array:
    costs = row_costs(rows)
    return np.log(np.column_stack([*(_axis(rows, name) for name in SHAPE), costs.flop, costs.moved]))


def grid(train: KernelTable, chip: Chip) -> Baseline:
    """Return linear interpolation of log time in the logarithms of the shape, on the grid of the rows.

    Outside its grid it goes on with the slope of the last factor of two along each axis. Cells of the grid that were
    not timed get the time of the nearest that was, scaled with the datasheet's roofline.
    """
    return Grid.of(train, chip).predict_us


@dataclass(frozen=True, slots=True)
class Grid:
    """Timed shapes on a grid of every axis that has more than one value.

    Attributes
    ----------
    names : axes
    nodes : values of each axis, ascending
    inside : from log shape to log time [us]
    """

    names: tuple[str, ...]
    nodes: tuple[Array, ...]
    inside: Callable[[Any], Any]

    @classmethod
    def of(cls, train: KernelTable, chip: Chip) -> Grid:
        """Build the grid of a table."""
        names = tuple(name for name in SHAPE if len(np.unique(train[name])) > 1)
        nodes = tuple(np.unique(_axis(train, name)) for name in names)
        cells = np.stack(np.meshgrid(*nodes, indexing="ij"), axis=-1).reshape(-1, len(names))
        timed = np.column_stack([_axis(train, name) for name in names])
        nearest = KDTree(np.log(timed)).query(np.log(cells))[1]
        known = train.take(nearest)
        times = known.latency_us * roofline_us(chip, _at(known, names, cells)) / roofline_us(chip, known)
        shape = tuple(len(each) for each in nodes)
        logs = [np.log(each) for each in nodes]
        return cls(names, nodes, RegularGridInterpolator(logs, np.log(times).reshape(shape)))

    def predict_us(self, rows: KernelTable) -> Array:
        """Return the time of each row [us]."""
        at = np.log(np.column_stack([_axis(rows, name) for name in self.names]))
        low, high = (np.log([each[end] for each in self.nodes]) for end in (0, -1))
        held = np.clip(at, low, high)
        time = edge = self.inside(held)
        for axis in np.flatnonzero(np.any(at != held, axis=0)):
            beyond = at[:, axis] - held[:, axis]
            inward = held.copy()
            inward[:, axis] -= np.sign(beyond) * math.log(2.0)
            slope = (edge - self.inside(np.clip(inward, low, high))) / math.log(2.0)
            time = time + slope * np.abs(beyond)
        return np.exp(time)


def _at(rows: KernelTable, names: tuple[str, ...], values: Array) -> KernelTable:
    """Return rows moved to other shapes."""
    moved = dict(zip(names, values.T, strict=True))
    if "kv_len" in moved and np.all(rows["q_len"] == rows["kv_len"]):
        moved["q_len"] = moved["kv_len"]
    return KernelTable.of({**rows.columns, **moved})


def _axis(rows: KernelTable, name: str) -> Array:
    return np.maximum(rows[name], 1).astype(np.float64)


BASELINES: Final[dict[str, Callable[[KernelTable, Chip], Baseline]]] = {
    "roofline": roofline,
    "3 par.": three_parameters,
    "forest": forest,
    "grid": grid,
}
"""Name -> how it is made from the rows that a fit may see."""
