"""Least squares where the residuals are not smooth: slopes over steps so wide that waves and scheduling average out.

A simulated run changes in jumps when a step parameter moves a little: one more request meets a batch, one fewer waits.
A derivative says nothing there, and descent that follows one ends wherever it began. Slopes over wide steps say what a
parameter does; a move counts only where the loss has fallen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, cast

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Residuals = Callable[[tuple[float, ...]], Array]
ROUNDS: Final = 8
NARROWEST: Final = 0.25
"""Slopes are never taken over less than this part of an axis's first width."""
_SHARES: Final = (1.0, 0.5, 0.2)
_STILL: Final = 0.15
_DAMPING: Final = 0.03


@dataclass(frozen=True, slots=True)
class Axis:
    """One parameter of a search: where it starts, how wide its first step is, where it may go."""

    name: str
    start: float
    width: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Found:
    """Where a search ended.

    Attributes
    ----------
    values : of every axis
    residuals : there, shape (m,)
    slopes : change of the residuals per unit of each axis, over wide steps, shape (m, axes)
    evaluations : how often the residuals were computed
    """

    values: tuple[float, ...]
    residuals: Array
    slopes: Array
    evaluations: int


def search(residuals: Residuals, axes: Sequence[Axis]) -> Found:
    """Return the values with the least sum of squared residuals that were found.

    Parameters
    ----------
    residuals : of values, one for each axis
    axes : what may move
    """
    known: dict[tuple[float, ...], Array] = {}

    def at(values: Array) -> Array:
        key = tuple(float(f"{value:.6g}") for value in values)
        if key not in known:
            known[key] = residuals(key)
        return known[key]

    low, high = (np.array([getattr(axis, end) for axis in axes]) for end in ("low", "high"))
    first = np.array([axis.width for axis in axes])
    here, widths = np.clip(np.array([axis.start for axis in axes]), low, high), first
    for _ in range(ROUNDS):
        before = loss(at(here))
        move = linear_move(at(here), slopes(at, here, widths, low, high), here, low, high, widths)
        for share in _SHARES:
            if loss(at(np.clip(here + share * move, low, high))) < before:
                break
        best = np.array(min(known, key=lambda key: loss(known[key])))
        still = bool((np.abs(best - here) < _STILL * widths).all())
        here = best
        if still and (widths <= NARROWEST * first).all():
            break
        widths = np.maximum(widths / 2, NARROWEST * first) if still else widths
    found = slopes(at, here, widths, low, high)
    return Found(tuple(map(float, here)), at(here), found, len(known))


def slopes(at: Callable[[Array], Array], here: Array, widths: Array, low: Array, high: Array) -> Array:
    """Return the change of the residuals per unit of each axis, over a step to both sides where bounds allow it."""
    columns: list[Array] = []
    for k, width in enumerate(widths):
        ends = np.stack([here, here])
        ends[:, k] = np.clip(here[k] + np.array([-width, width]), low[k], high[k])
        columns.append((at(ends[1]) - at(ends[0])) / (ends[1, k] - ends[0, k]))
    return np.stack(columns, axis=1)


def linear_move(residuals: Array, slope: Array, here: Array, low: Array, high: Array, widths: Array) -> Array:
    """Return the bounded move that would make the residuals least if they went on by their slopes.

    A light damping keeps an axis that hardly shows where it is.
    """
    from scipy.optimize import lsq_linear  # pyright: ignore[reportMissingTypeStubs, reportUnknownVariableType]

    damping = np.diag(_DAMPING / widths)
    room = 1e-12 * widths
    ends = (low - here - room, high - here + room)
    system = np.concatenate([slope, damping]), -np.concatenate([residuals, np.zeros(len(widths))])
    return cast("Array", lsq_linear(*system, bounds=ends).x)  # pyright: ignore[reportUnknownMemberType]


def loss(residuals: Array) -> float:
    """Return the sum of squares."""
    return float(residuals @ residuals)


def standard_errors(slope: Array, scale: float) -> Array:
    """Return the standard error of every axis where each residual's is ``scale``; infinite where it does not show."""
    information = slope.T @ slope
    if np.linalg.matrix_rank(slope) < slope.shape[1]:
        return np.full(slope.shape[1], np.inf)
    return scale * np.sqrt(np.diag(np.linalg.inv(information)))
