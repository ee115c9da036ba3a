"""What a fit of short contexts says of long ones: shown inside the rows that a fit may see."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ...hwmodels.spreads import beyond_per_log
from ..table import KernelTable
from .base import Array, FitResult, Parameter, errors, spread_90

NEAR: Final = 0.25
"""Contexts up to this share of the longest are fitted, longer ones predicted [-]. Shorter ones: fixed time alone."""
_MOST_GROWTH: Final = 1.0

Fit = Callable[[KernelTable, list[Parameter]], FitResult]
"""From rows and starts to a fit."""
Predict = Callable[[FitResult, KernelTable], Array]
"""Times of rows by a fit [us]."""


def growth_beyond(
    table: KernelTable,
    params: list[Parameter],
    fit: Fit,
    predict: Predict,
    regimes: Callable[[KernelTable], NDArray[Any]],
) -> float | None:
    """Return how fast errors grow with the distance of a context from the fitted ones [per unit of ln].

    What predictions of the longest contexts show is averaged with what the family shows elsewhere. None for too few
    rows.

    Parameters
    ----------
    table : rows that a fit may see
    params : starts and priors
    fit, predict, regimes : of the family
    """
    keys = table["kv_len"]
    near, far = table.where(keys <= NEAR * keys.max()), table.where(keys == keys.max())
    if len(near) < 2 * len(params):
        return None
    found = fit(near, params)
    known = [found.residual_sd.get(str(name), max(found.residual_sd.values())) for name in regimes(far)]
    off = np.log(predict(found, far) / far.latency_us)
    shown = (spread_90(off / np.array(known)) - 1.0) / -math.log(NEAR)
    return min(0.5 * (max(shown, 0.0) + beyond_per_log(found.family)), _MOST_GROWTH)


def pinned_by_the_long(
    table: KernelTable,
    name: str,
    values: tuple[float, ...],
    params: list[Parameter],
    fit: Fit,
    predict: Predict,
) -> list[Parameter]:
    """Return the parameters with one started where short contexts, fitted with it pinned there, predict long ones best.

    Parameters
    ----------
    table : rows that a fit may see
    name, values : parameter whose effect comes in jumps, and the starts to try
    params : starts and priors
    fit, predict : of the family
    """
    keys = table["kv_len"]
    near = keys <= NEAR * keys.max()
    if near.sum() < 2 * len(params) or near.all():
        return params
    parts, tried = (table.where(near), table.where(~near)), list[tuple[float, list[Parameter]]]()
    for value in values:
        pinned = [Parameter(p.name, value, vary=False) if p.name == name else p for p in params]
        found = fit(parts[0], pinned)
        tried.append((sum(errors(predict(found, part) / part.latency_us)["mape"] for part in parts), pinned))
    return min(tried, key=lambda each: each[0])[1]
