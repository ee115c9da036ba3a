"""Figures of runs that share their random numbers: intervals, and intervals of changes.

Two scenarios that are asked the same requests by the same draws differ by less than either varies: the change
is taken run by run, so that what is common to both cancels (common random numbers).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Literal

import numpy as np

from .point import Span, is_share

Rows = Sequence[Mapping[str, float | None]]
Samples = Mapping[str, Sequence[float]]
Of = Literal["mean", "spread"]
NOMINAL = 0.9


def samples(rows: Rows) -> dict[str, list[float]]:
    """Return metric -> its value in each run, of the metrics that every run knows."""
    found: dict[str, list[float]] = {}
    for name in rows[0] if rows else ():
        values = [row.get(name) for row in rows]
        known = [value for value in values if value is not None]
        if len(known) == len(values):
            found[name] = known
    return found


def means(rows: Rows) -> dict[str, float | None]:
    """Return metric -> its mean over runs; None where a run does not know it, its value where there is one run."""
    if len(rows) == 1:
        return dict(rows[0])
    known = samples(rows)
    return {name: fmean(known[name]) if name in known else None for name in rows[0]}


def changes(base: Samples, other: Samples) -> dict[str, list[float]]:
    """Return metric -> its change in each run: the difference of a share, else the ratio less 1.

    A metric that is 0 in some run of the base has no ratio and is left out.
    """
    found: dict[str, list[float]] = {}
    for name, values in other.items():
        before = base.get(name)
        if before is None:
            continue
        if is_share(name):
            found[name] = [b - a for a, b in zip(before, values, strict=True)]
        elif all(before):
            found[name] = [b / a - 1 for a, b in zip(before, values, strict=True)]
    return found


def spans(values: Samples, of: Of) -> dict[str, Span]:
    """Return metric -> [low, high] at 90 %.

    Parameters
    ----------
    values : metric -> value in each run
    of : ``mean``: where the mean of such runs lies (Student's t over independent runs); ``spread``: what holds
        90 % of such values (quantiles at rank p (n + 1), Weibull)
    """
    return {name: _mean(each) if of == "mean" else _spread(each) for name, each in values.items()}


def _mean(values: Sequence[float]) -> Span:
    from scipy.special import stdtrit  # pyright: ignore[reportMissingTypeStubs]

    n, middle = len(values), fmean(values)
    if n < 2 or all(value == values[0] for value in values):
        return middle, middle
    half = float(stdtrit(n - 1, 0.5 * (1 + NOMINAL))) * stdev(values) / math.sqrt(n)
    return middle - half, middle + half


def _spread(values: Sequence[float]) -> Span:
    tails = (0.5 * (1 - NOMINAL), 0.5 * (1 + NOMINAL))
    low, high = np.quantile(np.asarray(values), tails, method="weibull").tolist()
    return low, high
