"""Robust least squares in log parameters: what every family's fit shares.

A parameter is positive and known beforehand to some relative accuracy, so the fit works on logarithms: residuals
are log(predicted/measured) under a soft-L1 loss, priors are normal in log(parameter). The noise scale is
estimated from the residuals themselves. Forms have steps (tiles, splits, waves), so derivatives are taken over
a finite step in the logarithm, and a fit restarts from where it ended with a smaller one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from ...hwmodels.lanes import LatencyTable
from ...hwmodels.notebook import html, html_table
from ..errors import CalibrationError
from ..localspread import local_spread, spread_by_regime, terms_of
from .descent import Array as Array
from .descent import Model as Model
from .descent import Parameter as Parameter
from .descent import Problem, best_start, over_jumps

_STEPS: Final = (0.03, 0.01)
"""Steps of the logarithm over which derivatives are taken, one round of the fit after the other."""
_FIRST_SCALE: Final = 0.10
_SMALLEST_SCALE: Final = 0.002
_TO_SD: Final = 1.4826
"""From the median absolute deviation to the standard deviation of a normal."""
_LEAST_OWN: Final = 0.25
"""Least share of a spread's variance that is the form's own, not its parameters'."""
_FEWEST_KINDS: Final = 4
"""Of a column with fewer values none is left out: the rest would be another table."""
IDENTIFIED: Final = 0.5
"""A parameter whose posterior spread is below this share of its prior's was learnt from the data."""


@dataclass(frozen=True, slots=True)
class FittedValue:
    """One parameter after the fit.

    Attributes
    ----------
    estimate, stderr : posterior mode and standard error [unit of the name]
    start, sd_log : prior
    identified : whether the data narrowed the prior to less than half
    """

    estimate: float
    stderr: float
    start: float
    sd_log: float
    identified: bool


@dataclass(frozen=True, slots=True)
class FitResult:
    """The product of a fit.

    Attributes
    ----------
    family, lane : kernel family and software lane
    values : by symbol, in the order of ``correlation``
    correlation : of the log parameters; pinned ones correlate with nothing
    residual_sd : spread of log(predicted/measured) about 0 by regime (``spread_90``) [-]
    residual_bias : its mean by regime [-]
    local : by how much a row's spread exceeds its regime's (``local_spread``)
    n : rows fitted
    hull : range of every axis of the fitted rows
    notes : what was excluded, approximated, pinned
    train : errors on the fitted rows (``mape``, ``median_ape``, ``p90_ape``, ``bias``), as fractions
    table : a measured table that is preferred to the form (all-reduce)
    growth : how fast errors grow outside the hull, where the fit could tell [per unit of ln]
    level : ``bridged`` where the rows are another software's
    """

    family: str
    lane: str
    values: Mapping[str, FittedValue]
    correlation: tuple[tuple[float, ...], ...]
    residual_sd: Mapping[str, float]
    residual_bias: Mapping[str, float]
    n: int
    hull: Mapping[str, tuple[float, float]]
    notes: tuple[str, ...] = ()
    train: Mapping[str, float] = field(default_factory=dict[str, float])
    table: LatencyTable | None = None
    growth: float | None = None
    level: Literal["measured", "bridged"] = "measured"
    local: Mapping[str, float] = field(default_factory=dict[str, float])

    @property
    def params(self) -> dict[str, float]:
        """Estimates by symbol: what a timing function reads."""
        return {name: value.estimate for name, value in self.values.items()}

    @property
    def stderr(self) -> dict[str, float]:
        """Standard errors by symbol."""
        return {name: value.stderr for name, value in self.values.items()}

    def report(self) -> str:
        """Return the fit as text: parameters with their errors and priors, residuals, range, notes."""
        head = f"{self.family} / {self.lane}: {self.n} rows"
        errors = ", ".join(f"{name} {100 * value:.1f} %" for name, value in self.train.items())
        lines = [head + (f"; fitted rows: {errors}" if errors else "")]
        width = max((len(name) for name in self.values), default=0)
        for name, value in self.values.items():
            known = "from data" if value.identified else ("pinned" if value.stderr == 0.0 else "from prior")
            lines.append(
                f"  {name:<{width}}  {value.estimate:>10.5g} ± {value.stderr:<9.3g} (start {value.start:g}, {known})"
            )
        for regime, sd in self.residual_sd.items():
            bias = self.residual_bias.get(regime, 0.0)
            lines.append(f"  residual {regime}: sd {100 * sd:.1f} %, mean {100 * bias:+.1f} %")
        lines += [f"  {axis}: {low:g} to {high:g}" for axis, (low, high) in self.hull.items()]
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines) + "\n"

    def _repr_html_(self) -> str:
        """Show the parameters with their errors, and the residuals."""
        rows = [
            [name, each.estimate, each.stderr or None, each.start, "data" if each.identified else "prior"]
            for name, each in self.values.items()
        ]
        spread = [
            [regime, 100 * sd, 100 * self.residual_bias.get(regime, 0.0)]
            for regime, sd in self.residual_sd.items()
        ]
        return html(
            f"{self.family} / {self.lane}: {self.n:,} rows, {self.level}",
            html_table(["parameter", "estimate", "± stderr", "start", "known from"], rows),
            html_table(["residuals", "spread %", "mean %"], spread),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "family": self.family,
            "lane": self.lane,
            "parameters": {
                name: {
                    "value": value.estimate,
                    "stderr": value.stderr,
                    "start": value.start,
                    "sd_log": value.sd_log if math.isfinite(value.sd_log) else None,
                    "identified": value.identified,
                }
                for name, value in self.values.items()
            },
            "correlation": [list(row) for row in self.correlation],
            "residual_sd": dict(self.residual_sd),
            "residual_bias": dict(self.residual_bias),
            "n": self.n,
            "hull": {axis: list(ends) for axis, ends in self.hull.items()},
            "notes": list(self.notes),
            "train": dict(self.train),
            "table": self.table.model_dump(mode="json") if self.table else None,
            "growth": self.growth,
            "level": self.level,
            "local": dict(self.local),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> FitResult:
        """Read what ``to_dict`` wrote.

        Raises
        ------
        CalibrationError : a key is missing or of another kind
        """
        try:
            return cls(
                family=data["family"],
                lane=data["lane"],
                values={
                    name: FittedValue(
                        estimate=float(value["value"]),
                        stderr=float(value["stderr"]),
                        start=float(value["start"]),
                        sd_log=math.inf if value["sd_log"] is None else float(value["sd_log"]),
                        identified=bool(value["identified"]),
                    )
                    for name, value in data["parameters"].items()
                },
                correlation=tuple(tuple(float(c) for c in row) for row in data["correlation"]),
                residual_sd=dict(data["residual_sd"]),
                residual_bias=dict(data["residual_bias"]),
                n=int(data["n"]),
                hull={axis: (float(low), float(high)) for axis, (low, high) in data["hull"].items()},
                notes=tuple(data["notes"]),
                train=dict(data["train"]),
                table=LatencyTable.model_validate(data["table"]) if data["table"] else None,
                growth=None if data.get("growth") is None else float(data["growth"]),
                level="bridged" if data.get("level") == "bridged" else "measured",
                local=dict(data.get("local") or {}),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            text = " ".join(str(error).split())
            raise CalibrationError(f"not a fit result: {type(error).__name__}: {text}") from None


def robust_fit(
    model: Model,
    params: Sequence[Parameter],
    measured: Array,
    *,
    family: str,
    lane: str = "vllm",
    weights: Array | None = None,
    regimes: NDArray[Any] | None = None,
    hull: Mapping[str, tuple[float, float]] | None = None,
    notes: Sequence[str] = (),
    rounds: int = 3,
    evaluations: int = 40,
    steps: Sequence[float] = _STEPS,
    scale: float | None = None,
    scan: Mapping[str, Sequence[float]] | None = None,
    axes: Mapping[str, Array] | None = None,
    alike: Sequence[NDArray[Any]] = (),
) -> FitResult:
    """Fit parameters to measured times.

    Parameters
    ----------
    model : from a value for every parameter to predicted times, one a row [us]
    params : starts, priors and bounds; pinned ones are handed to the model too
    measured : measured times [us], shape (n,)
    family, lane : what is fitted, for the result
    weights : weight of each row's squared residual [-], shape (n,); default 1
    regimes : name of each row's regime, for the residual spread; default one regime, ``all``
    hull : range of every axis (``hull_of``)
    notes : kept in the result
    rounds : how often the noise scale is estimated anew
    evaluations : derivative evaluations a round may take
    steps : steps of the derivative, by round; the last one holds for the rest
    scale : noise of log(time), where it is known [-]; default: from the residuals
    scan : values from which a parameter is also started, where its effect comes in jumps; the best end is kept, and
        the standard error is no less than the values' distance allows
    axes : value of each row by axis of the hull, for what its spread depends on within its regime; without, on nothing
    alike : columns, shape (n,) each; residuals of a row are then those of a fit that has not seen the rows that agree
        with it in one of them, less what the parameters' covariance adds: a spread that holds for unseen shapes

    Raises
    ------
    CalibrationError : fewer rows than parameters, a time that is not positive, or a model that predicts none

    Examples
    --------
    >>> x = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
    >>> params = [Parameter("a", 1.5, 1.0), Parameter("b", 1.0, 1.0)]
    >>> fit = robust_fit(lambda p: p["a"] + p["b"] * x, params, 2.0 + 3.0 * x, family="line")
    >>> round(fit.params["a"], 2), round(fit.params["b"], 2)
    (2.0, 3.0)
    """
    varied = [p for p in params if p.vary]
    _check(measured, varied, family, lane)
    weight = np.ones(len(measured)) if weights is None else np.sqrt(weights)
    problem = Problem(model, params, varied, np.log(measured), weight)
    sd = _FIRST_SCALE if scale is None else scale
    x = best_start(problem, np.log([p.start for p in varied]), sd, scan or {}, steps[0])
    for turn in range(max(rounds, 1)):
        step = steps[min(turn, len(steps) - 1)]
        x = problem.minimise(x, sd, step, evaluations)
        if scale is None:
            sd = _robust_sd(problem.log_ratio(x))
    covariance, _ = problem.covariance(x, sd, steps[-1])
    for i, starts in [(i, scan[p.name]) for i, p in enumerate(varied) if scan and p.name in scan]:
        x, covariance = over_jumps(problem, x, sd, steps[-1], evaluations, i, starts)
    ratio = problem.log_ratio(x)
    names = np.full(len(measured), "all") if regimes is None else regimes
    alike = [column for column in alike if len(np.unique(column)) >= _FEWEST_KINDS]
    unseen, doubt = ratio, 0.0 * ratio
    if alike:
        unseen, doubt = problem.unseen(x, sd, steps[-1], covariance, alike)
    spread = spread_by_regime(unseen, names)
    values = _fitted(params, varied, x, covariance)
    local: dict[str, float] = {}
    if axes is not None:
        known = {name: value.estimate for name, value in values.items()}
        stderr = {name: value.stderr for name, value in values.items()}
        terms = terms_of(model, known, stderr, measured * np.exp(ratio), hull or {}, axes)
        local = local_spread(unseen, names, terms)
    spread = {name: _own(sd, doubt[names == name]) for name, sd in spread.items()}
    return FitResult(
        family=family,
        lane=lane,
        values=values,
        correlation=_correlation(params, varied, covariance),
        residual_sd=spread,
        residual_bias={str(name): float(np.mean(ratio[names == name])) for name in np.unique(names)},
        n=len(measured),
        hull=dict(hull or {}),
        notes=tuple(notes),
        train=errors(np.exp(ratio)),
        local=local,
    )


def errors(ratio: Array) -> dict[str, float]:
    """Return MAPE, median and 90th percentile of the absolute error, and bias, of predicted/measured [-].

    >>> {name: round(value, 3) for name, value in errors(np.array([0.9, 1.1, 1.2])).items()}
    {'mape': 0.133, 'median_ape': 0.1, 'p90_ape': 0.18, 'bias': 0.067}
    """
    if not len(ratio):
        return {"mape": math.nan, "median_ape": math.nan, "p90_ape": math.nan, "bias": math.nan}
    off = ratio - 1.0
    size = np.abs(off)
    return {
        "mape": float(np.mean(size)),
        "median_ape": float(np.median(size)),
        "p90_ape": float(np.quantile(size, 0.9)),
        "bias": float(np.mean(off)),
    }


def hull_of(**axes: Array) -> dict[str, tuple[float, float]]:
    """Return the range of every axis.

    >>> hull_of(m=np.array([1.0, 8.0]))
    {'m': (1.0, 8.0)}
    """
    return {name: (float(np.min(axis)), float(np.max(axis))) for name, axis in axes.items()}


def _own(spread: float, doubt: Array) -> float:
    """Return a spread without the variance of its parameters, which intervals add again row by row."""
    return math.sqrt(max(spread**2 - float(np.mean(doubt)), _LEAST_OWN * spread**2))


def _robust_sd(ratio: Array) -> float:
    return max(_TO_SD * float(np.median(np.abs(ratio))), _SMALLEST_SCALE)


def _check(measured: Array, varied: Sequence[Parameter], family: str, lane: str) -> None:
    where = f"the {family} lane {lane!r}"
    if len(measured) < max(len(varied), 1):
        raise CalibrationError(
            f"{len(measured)} rows are too few for {where}; needed: at least {max(len(varied), 1)}"
        )
    if not (np.isfinite(measured).all() and (measured > 0.0).all()):
        raise CalibrationError(f"{where} has times that are not positive; screen the table first")


def _fitted(
    params: Sequence[Parameter], varied: Sequence[Parameter], x: Array, covariance: Array
) -> dict[str, FittedValue]:
    at = {p.name: i for i, p in enumerate(varied)}
    found: dict[str, FittedValue] = {}
    for p in params:
        if p.name not in at:
            found[p.name] = FittedValue(p.start, 0.0, p.start, 0.0, identified=False)
            continue
        i = at[p.name]
        sd = math.sqrt(max(float(covariance[i, i]), 0.0))
        estimate = math.exp(float(x[i]))
        found[p.name] = FittedValue(
            estimate, estimate * sd, p.start, p.sd_log, identified=sd < IDENTIFIED * p.sd_log
        )
    return found


def _correlation(
    params: Sequence[Parameter], varied: Sequence[Parameter], covariance: Array
) -> tuple[tuple[float, ...], ...]:
    n = len(params)
    full = np.eye(n)
    rows = [i for i, p in enumerate(params) if p.vary]
    sd = np.sqrt(np.maximum(np.diag(covariance), 1e-300))
    full[np.ix_(rows, rows)] = covariance / np.outer(sd, sd)
    np.fill_diagonal(full, 1.0)
    assert len(rows) == len(varied)
    return tuple(tuple(round(float(c), 4) for c in row) for row in full)
