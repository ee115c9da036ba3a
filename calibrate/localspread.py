"""How residuals spread within a regime: smoothly with where a row lies and with what it is held up by.

A regime's residuals are of one size no more than a lane's are. The logarithm of their size is regressed on the row's
place in the calibrated hull and on the shares of its time that bandwidth and compute rule, and their squares and
products; in every regime the factor is set so that nine tenths of its rows stay inside. At equal coverage of weight
shapes that a fit had not seen, the median half width falls from 13.7 to 12.7 % (GEMM of H100), 6.9 to 5.8 and 19.9 to
16.6 (fp8 of TensorRT-LLM and SGLang there), 31.1 to 26.3 (fp8 by blocks of SGLang on B200).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ..hwmodels.spreads import REGIMES, Regime
from ..hwmodels.uncertainty import slowed

Array = NDArray[np.float64]
STEP: Final = 0.03
"""Step of the logarithm for derivatives, as in the fits: forms have kinks that smaller ones would fall into."""
SMALLEST: Final = 1e-300
_AT_90: Final = 1.6448536
"""Half width of the central nine tenths of a standard normal."""
_RULING: Final[tuple[Regime, ...]] = ("memory", "compute")
"""Shares that are terms; with that of fixed times they add up to one."""
_ROWS_PER_TERM: Final = 30
_FEWEST_OF_A_REGIME: Final = 40
"""A regime of fewer rows takes the tail and the factor of all."""
_RIDGE: Final = 3.0
_FLOOR: Final = 0.2
"""What is added to residuals before their logarithm is taken, over their median: small ones are chance."""
_TURNS: Final = 4
"""How often the regression is done anew, on residuals over their spread so far: the floor is then that of the place."""
_LARGEST: Final = math.log(5.0)
"""Most that the factor may be, either way, in the logarithm."""


def spread_90(log_ratio: Array) -> float:
    """Return the standard deviation of the normal about 0 that holds nine tenths of some residuals [-].

    Residuals have longer tails than a normal; their own standard deviation would make 90 % intervals a fifth too
    wide on most rows (16.6 instead of 14.1 % half width on H100 GEMM, both with 88-90 % of unseen rows inside).
    Of n residuals the one at rank 0.9 (n + 1) counts, so that the next row is inside with nine tenths, however few
    there are.

    >>> round(spread_90(np.linspace(-1.0, 1.0, 2001)), 3), spread_90(np.array([0.1, 0.2])) * 1.6448536
    (0.548, 0.2)
    """
    size = np.sort(np.abs(log_ratio))
    rank = min(math.ceil(0.9 * (len(size) + 1)), len(size))
    return float(size[rank - 1]) / _AT_90


def spread_by_regime(log_ratio: Array, regimes: NDArray[Any]) -> dict[str, float]:
    """Return the spread of residuals by regime (``spread_90``).

    A regime of few rows has the tail of all, over its own mean size: the rank that holds nine tenths of nine rows is
    their largest. Sizes left out of twenty all-reduce tables are covered to 88.6 instead of 90.9 % by a median half
    width of 13.8 instead of 17.0 %, no regime worse than the others.

    Parameters
    ----------
    log_ratio, regimes : residual and regime of each row, shape (n,)

    Examples
    --------
    >>> spread_by_regime(np.array([0.1, -0.1, 0.4, -0.4]), np.array(["a", "a", "b", "b"]))["b"] * 1.6448536
    0.4
    """
    size, names = np.abs(log_ratio), [str(name) for name in np.unique(regimes)]
    rows = {name: size[regimes == name] for name in names}
    mean = {name: max(float(np.mean(own)), SMALLEST) for name, own in rows.items()}
    tail = spread_90(np.concatenate([rows[name] / mean[name] for name in names]))
    return {
        name: spread_90(own) if len(own) >= _FEWEST_OF_A_REGIME else tail * mean[name]
        for name, own in rows.items()
    }


def held_up_by(
    model: Callable[[Mapping[str, float]], Array],
    params: Mapping[str, float],
    time: Array,
    regimes: Sequence[Regime] = REGIMES,
) -> dict[Regime, Array]:
    """Return the share of each row's time that regimes rule, shape (n,) each [-].

    Parameters
    ----------
    model : from a value for every parameter to the times of the rows
    params, time : parameters, and the times under them, shape (n,)
    """
    return {
        regime: np.log(np.maximum(model(slowed(params, {regime: math.exp(STEP)})), SMALLEST) / time) / STEP
        for regime in regimes
    }


def terms_of(
    model: Callable[[Mapping[str, float]], Array],
    params: Mapping[str, float],
    stderr: Mapping[str, float],
    time: Array,
    hull: Mapping[str, tuple[float, float]],
    axes: Mapping[str, Array],
) -> dict[str, Array]:
    """Return what the spread of rows may depend on, with squares and products, shape (n,) each [-].

    Parameters
    ----------
    model, params, time : see ``held_up_by``
    stderr : standard errors of the parameters; a pinned one, of which a lane may say nothing, has 0 and rules nothing
    hull : range by axis, which becomes -1 to 1 in the logarithm; rows outside count as at its edge
    axes : value of each row by axis

    Examples
    --------
    >>> x = np.array([10.0, 1e3])
    >>> terms = terms_of(lambda p: x / p["eb"], {"eb": 0.8}, {"eb": 0.1}, x / 0.8, {"m": (1.0, 100.0)}, {"m": x})
    >>> terms["m"].tolist(), terms["m * memory"].round(3).tolist(), len(terms)
    ([0.0, 1.0], [0.0, 1.0], 9)
    """
    free = {name: value for name, value in params.items() if stderr.get(name, 0.0) > 0.0}
    held_up = held_up_by(lambda values: model({**params, **values}), free, time, _RULING)
    plain: dict[str, Array] = {}
    for name in sorted(hull.keys() & axes.keys()):
        low, high = (math.log(max(end, SMALLEST)) for end in hull[name])
        if high > low:
            at = np.log(np.maximum(np.asarray(axes[name], dtype=np.float64), SMALLEST))
            plain[name] = np.clip((2.0 * at - low - high) / (high - low), -1.0, 1.0)
    plain |= {regime: np.clip(held_up[regime], 0.0, 1.0) for regime in _RULING}
    names = list(plain)
    products = {f"{a} * {b}": plain[a] * plain[b] for i, a in enumerate(names) for b in names[i:]}
    return plain | products


def local_spread(log_ratio: Array, regimes: NDArray[Any], terms: Mapping[str, Array]) -> dict[str, float]:
    """Return by how much the spread of a row exceeds its regime's: the logarithm, by term and, constant, by regime.

    Parameters
    ----------
    log_ratio : residuals of rows, shape (n,)
    regimes : regime of each
    terms : see ``terms_of``

    Examples
    --------
    >>> x, sign = np.linspace(-1.0, 1.0, 400), np.where(np.arange(400) % 2, 1.0, -1.0)
    >>> found = local_spread(0.1 * np.exp(x) * sign, np.full(400, "all"), {"x": x})
    >>> 0.7 < found["x"] < 1.0
    True
    """
    if len(log_ratio) < _ROWS_PER_TERM * (len(terms) + 1):
        return {}
    size = np.abs(log_ratio)
    columns = np.column_stack([np.ones(len(size)), *terms.values()])
    normal = columns.T @ columns + _RIDGE * np.eye(columns.shape[1])
    slopes, over = np.zeros(columns.shape[1]), size
    for _ in range(_TURNS):
        target = np.log(over + max(_FLOOR * float(np.median(over)), SMALLEST))
        slopes = slopes + np.linalg.solve(normal, columns.T @ target)
        over = size / np.exp(columns[:, 1:] @ slopes[1:])
    found = dict(zip(terms, slopes[1:].tolist(), strict=True))
    spreads = spread_by_regime(log_ratio, regimes)
    for name in np.unique(regimes):
        own = regimes == name
        known = spread_90(over[own] if own.sum() >= _FEWEST_OF_A_REGIME else over)
        found[str(name)] = math.log(max(known, SMALLEST) / max(spreads[str(name)], SMALLEST))
    return found


def local_factor(
    local: Mapping[str, float],
    regimes: NDArray[Any],
    terms: Mapping[str, Array],
    distance: Array | None = None,
) -> Array:
    """Return the spread of each row over that of its regime, shape (n,) [-].

    What is better known at the edge of the hull than in its middle is less so with the distance from it: a factor
    below 1 fades with that.

    Parameters
    ----------
    local, regimes, terms : see ``local_spread``
    distance : of each row from the hull, shape (n,) [ln]; default: all are inside
    """
    constant = np.array([local.get(str(name), 0.0) for name in regimes])
    log = np.clip(constant + _sum(local, terms, len(regimes)), -_LARGEST, _LARGEST)
    fade = 1.0 if distance is None else np.where(log < 0.0, np.exp(-distance), 1.0)
    return np.exp(log * fade)


def _sum(local: Mapping[str, float], terms: Mapping[str, Array], n: int) -> Array:
    total = np.zeros(n)
    for name, values in terms.items():
        total = total + local.get(name, 0.0) * values
    return total
