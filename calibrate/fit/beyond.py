"""What a fit of short contexts says of long ones: shown inside the rows that a fit may see."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from ...hwmodels.spreads import beyond_per_log
from ..localspread import spread_90
from ..table import KernelTable
from ..uncertainty import Predictive
from .base import Array, FitResult, Parameter, errors

NEAR: Final = 0.25
"""Contexts up to this share of the longest are fitted, longer ones predicted [-]. Shorter ones: fixed time alone."""
_MOST_GROWTH: Final = 1.0

Fit = Callable[[KernelTable, list[Parameter]], FitResult]
"""From rows and starts to a fit."""
Expect = Callable[[FitResult, KernelTable], Predictive]
"""Times of rows by a fit, with their spread."""
Predict = Callable[[FitResult, KernelTable], Array]
"""Times of rows by a fit [us]."""


def growth_beyond(
    table: KernelTable,
    keys: Array,
    params: list[Parameter],
    fit: Fit,
    expect: Expect,
    *,
    shares: Sequence[float] = (NEAR,),
) -> float | None:
    """Return how fast errors grow with the distance of a context from the fitted ones [per unit of ln].

    The longest contexts are predicted from those up to some shares of their length. What errors show there beyond the
    spread that is stated inside the fitted range is averaged with what the family shows elsewhere. None for too few
    rows.

    Parameters
    ----------
    table : rows that a fit may see
    keys : context of each row, shape (n,) [tokens]
    params : starts and priors
    fit, expect : of the family
    shares : of the longest context [-]
    """
    far, shown, family = table.where(keys == keys.max()), list[float](), ""
    for share in shares:
        near = table.where(keys <= share * keys.max())
        if len(near) < 2 * len(params):
            continue
        found = fit(near, params)
        expected, family = expect(replace(found, growth=0.0), far), found.family
        off = np.log(expected.time / far.latency_us) / expected.sd
        shown.append((spread_90(off) - 1.0) / -math.log(share))
    return min(0.5 * (max(*shown, 0.0) + beyond_per_log(family)), _MOST_GROWTH) if shown else None


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
