"""How far a predicted kernel time may be off: predictive intervals of fits and of published lanes.

The spread of log(time) of a row is ``sqrt(J S J' + residual^2 + added^2)``: J holds the derivatives of the row's
log time by the log parameters and S their covariance, the residual is what the form did not explain of rows of the
row's regime, more or less of it within the regime (``localspread.py``), and what is added comes from a lane that was
borrowed (``hwmodels/spreads.py``). Parameter covariance alone covers 45 % at nominal 90 %: it is never used alone.
Outside the calibrated hull the residual grows with the distance in logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ..hwmodels.device import DeviceProfile
from ..hwmodels.lanes import Lane
from ..hwmodels.spreads import REGIMES, Regime, Spread, beyond_per_log
from ..hwmodels.uncertainty import (
    STATED_AS,
    added_spread,
    fitted_level,
    parameter_spread,
    residual_of,
)
from .errors import CalibrationError
from .fit.base import FitResult, Model
from .localspread import SMALLEST, STEP, held_up_by, local_factor, terms_of

Array = NDArray[np.float64]
NOMINAL: Final = 0.9


@dataclass(frozen=True, slots=True)
class Predictive:
    """Predicted times and how far each may be off.

    Attributes
    ----------
    time : predicted times, shape (n,) [the model's unit]
    sd : standard deviation of log(measured/predicted) of each row, shape (n,) [-]
    distance : how far outside the calibrated hull each row is; 0 inside, shape (n,) [ln]
    """

    time: Array
    sd: Array
    distance: Array

    def interval(self, nominal: float = NOMINAL, scale: float = 1.0) -> tuple[Array, Array]:
        """Return low and high of every row, shape (n,) each [as ``time``].

        Parameters
        ----------
        nominal : share of measurements that should fall inside
        scale : factor on the width, of ``conformal_scale``
        """
        width = np.exp(NormalDist().inv_cdf(0.5 * (1.0 + nominal)) * scale * self.sd)
        return self.time / width, self.time * width

    def half_width(self, nominal: float = NOMINAL, scale: float = 1.0) -> Array:
        """Return half the interval's width over the prediction, shape (n,) [-]."""
        low, high = self.interval(nominal, scale)
        return 0.5 * (high - low) / self.time

    @property
    def inside(self) -> NDArray[np.bool_]:
        """Which rows are inside the calibrated hull."""
        return self.distance <= 0.0


def of_fit(
    fit: FitResult,
    model: Model,
    *,
    regimes: NDArray[Any] | None = None,
    axes: Mapping[str, Array] | None = None,
) -> Predictive:
    """Return predictions of a fit with their spread.

    Parameters
    ----------
    fit : the fit
    model : from a value for every parameter to the times of the rows, shape (n,)
    regimes : regime of each row, named as for the fit; without, what holds a row up is taken from its derivatives
    axes : value of each row by axis of the fit's hull; without, every row counts as inside

    Examples
    --------
    >>> from membound.calibrate.fit.base import Parameter, hull_of, robust_fit
    >>> x = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
    >>> model = lambda p: p["a"] * x
    >>> fit = robust_fit(model, [Parameter("a", 1.5, 1.0)], 3.0 * x, family="line", hull=hull_of(x=x))
    >>> low, high = of_fit(fit, model, axes={"x": x}).interval()
    >>> bool(np.all((low <= 3.0 * x * 1.001) & (3.0 * x <= high * 1.001)))
    True
    """
    lane = Lane(
        family=fit.family,
        lane=fit.lane,
        params=fit.params,
        stderr=fit.stderr,
        level="measured",
        source="",
        device="",
        correlation=fit.correlation,
        residual=fit.residual_sd,
        local=fit.local,
        hull=fit.hull,
        growth=fit.growth,
    )
    return _predictive(lane, model, "measured", Spread(), regimes, axes)


def of_lane(
    device: DeviceProfile,
    lane: Lane,
    model: Model,
    *,
    regimes: NDArray[Any] | None = None,
    axes: Mapping[str, Array] | None = None,
) -> Predictive:
    """Return predictions of a device's lane with their spread; its level widens it. See ``of_fit``."""
    level = fitted_level(device, lane)
    if level == "prior" and lane.correlation is None:
        lane = replace(lane, stderr={})  # the residual of starting values holds what their parameters add
    return _predictive(lane, model, level, added_spread(device, lane), regimes, axes)


def _predictive(
    lane: Lane,
    model: Model,
    level: str,
    added: Spread,
    regimes: NDArray[Any] | None,
    axes: Mapping[str, Array] | None,
) -> Predictive:
    params = lane.params
    time = np.maximum(np.asarray(model(params), dtype=np.float64), SMALLEST)
    held_up = held_up_by(model, params, time)
    residual = _residual(lane, level, held_up, regimes, len(time))
    distance = hull_distance(lane.hull, axes or {}, len(time))
    if regimes is not None and lane.local:
        terms = terms_of(model, params, lane.stderr, time, lane.hull, axes or {})
        fading = None if lane.growth is None else distance
        residual = residual * local_factor(lane.local, regimes, terms, fading)
    growth = beyond_per_log(lane.family) if lane.growth is None else lane.growth
    residual = residual * (1.0 + growth * distance)
    variance = _parameter_variance(lane, model, len(time)) + residual**2
    for regime in REGIMES:
        variance = variance + (held_up[regime] * added.of(regime)) ** 2
    return Predictive(time, np.sqrt(variance), distance)


def _residual(
    lane: Lane, level: str, held_up: Mapping[Regime, Array], regimes: NDArray[Any] | None, n: int
) -> Array:
    """Return the residual spread of each row: of its regime by name, else of what it is held up by.

    Without regimes of its own a lane has one residual for all its rows, which moves a kernel as a whole.
    """
    if regimes is not None and lane.residual:
        rest = residual_of(lane, "memory", level) if "all" in lane.residual else max(lane.residual.values())
        return np.array([lane.residual.get(str(name), rest) for name in regimes])
    if lane.residual and not any(name in lane.residual for names in STATED_AS.values() for name in names):
        return np.full(n, residual_of(lane, "memory", level))
    weight = sum(np.abs(slope) for slope in held_up.values())
    total = sum(np.abs(held_up[regime]) * residual_of(lane, regime, level) for regime in REGIMES)
    return np.asarray(total / np.maximum(weight, 1e-9))


def _parameter_variance(lane: Lane, model: Model, n: int) -> Array:
    """Return J S J' of each row in logarithms, shape (n,) [-]."""
    names = [name for name in lane.params if lane.params[name] and lane.stderr.get(name, 0.0) > 0.0]
    if not names:
        return np.zeros(n)
    sd = np.array([parameter_spread(lane.params[name], lane.stderr[name]) for name in names])
    columns: list[Array] = []
    for name in names:
        up, down = dict(lane.params), dict(lane.params)
        up[name], down[name] = up[name] * math.exp(STEP), down[name] * math.exp(-STEP)
        above, below = np.asarray(model(up)), np.asarray(model(down))
        columns.append(np.log(np.maximum(above, SMALLEST) / np.maximum(below, SMALLEST)) / (2.0 * STEP))
    jacobian = np.stack(columns, axis=1) * sd
    correlation = np.eye(len(names))
    if lane.correlation is not None:
        at = [list(lane.params).index(name) for name in names]
        correlation = np.array(lane.correlation)[np.ix_(at, at)]
    return np.maximum(np.einsum("ni,ij,nj->n", jacobian, correlation, jacobian), 0.0)


def hull_distance(hull: Mapping[str, tuple[float, float]], axes: Mapping[str, Array], n: int) -> Array:
    """Return how far each row lies outside a calibrated range, over all axes together [ln].

    Parameters
    ----------
    hull : range by axis
    axes : value of each row by axis, shape (n,) each; axes that the hull lacks are left out
    n : rows

    Examples
    --------
    >>> hull_distance({"m": (1.0, 100.0)}, {"m": np.array([1.0, 100.0, 100.0 * np.e])}, 3).round(3).tolist()
    [0.0, 0.0, 1.0]
    """
    squared = np.zeros(n)
    for name, values in axes.items():
        if name not in hull:
            continue
        low, high = (max(end, SMALLEST) for end in hull[name])
        at = np.log(np.maximum(np.asarray(values, dtype=np.float64), SMALLEST))
        squared += np.maximum(np.maximum(at - math.log(high), math.log(low) - at), 0.0) ** 2
    return np.sqrt(squared)


def conformal_scale(measured: Array, predicted: Predictive, nominal: float = NOMINAL) -> float:
    """Return the factor on the width with which rows that were never fitted are covered as often as they should.

    Split conformal: the score of a row is |log(measured/predicted)| over its half width in logarithms, the factor
    the score at rank ceil((n + 1) nominal). For exchangeable rows the next one is then inside with at least that
    probability, whatever the distribution.

    Raises
    ------
    CalibrationError : too few rows for that rank
    """
    n = len(measured)
    rank = math.ceil((n + 1) * nominal)
    if rank > n:
        needed = math.ceil(nominal / (1.0 - nominal) - 1e-9)
        raise CalibrationError(
            f"{n} rows to set a {100 * nominal:g} % interval by; allowed: {needed} or more"
        )
    z = NormalDist().inv_cdf(0.5 * (1.0 + nominal))
    scores = np.abs(np.log(measured / predicted.time)) / (z * np.maximum(predicted.sd, 1e-12))
    return float(np.sort(scores)[rank - 1])


def coverage(measured: Array, interval: tuple[Array, Array]) -> float | None:
    """Return the share of measured times inside their interval [-]; None for no rows."""
    if not len(measured):
        return None
    low, high = interval
    return float(np.mean((measured >= low) & (measured <= high)))


def coverage_figures(
    measured: Array, predicted: Predictive, *, nominal: float = NOMINAL, scale: float = 1.0
) -> dict[str, float | None]:
    """Return ``coverage_90`` inside the hull, ``coverage_90_outside`` and ``median_half_width`` of a group."""
    low, high = predicted.interval(nominal, scale)
    inside = predicted.inside
    return {
        "coverage_90": coverage(measured[inside], (low[inside], high[inside])),
        "coverage_90_outside": coverage(measured[~inside], (low[~inside], high[~inside])),
        "median_half_width": float(np.median(predicted.half_width(nominal, scale)))
        if len(measured)
        else None,
    }
