"""Descent in log parameters: from a start to a minimum, and how wide it is.

Damped Gauss-Newton with the loss as weights. Where the effect of a parameter comes in jumps (blocks to units), a
descent ends between two of them: starts are scanned, minima are looked for across jumps, and the covariance says what
lies there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ..errors import CalibrationError

Array = NDArray[np.float64]
Model = Callable[[Mapping[str, float]], Array]
"""From a value for every parameter to the predicted times of the fitted rows [us]."""

_WIDEST: Final = 0.3
_NARROWINGS: Final = 2
"""The step from which derivatives for the covariance narrow to the errors that they gave, and how often."""
_PATH: Final = np.linspace(-0.4, 0.4, 81)
_CROSSINGS: Final = 3
"""Where, and how often, a lower minimum is looked for across jumps, in the logarithm of a scanned parameter."""
_LEAST_SPARED: Final = 0.1
"""Least share of the rows that counts as left over after the parameters were learnt."""
_SCAN_EVALUATIONS: Final = 8
_FARTHEST: Final = 0.7
"""Longest step of a logarithm."""
_LOG_FLOOR: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a fit: where it starts and how far it may go.

    Attributes
    ----------
    name : symbol, with its unit where it is a time (``t0_us``)
    start : centre of the log-normal prior, and starting value
    sd_log : standard deviation of the prior in log(parameter); infinity for none
    low, high : bounds
    vary : False pins the parameter at ``start``
    """

    name: str
    start: float
    sd_log: float = 0.3
    low: float = 1e-4
    high: float = 1e6
    vary: bool = True

    def __post_init__(self) -> None:
        """Refuse a parameter that has no logarithm or lies outside its bounds."""
        if self.vary and not (0.0 < self.low <= self.start <= self.high and self.sd_log > 0.0):
            raise CalibrationError(
                f"parameter {self.name!r} starts at {self.start:g}; allowed: {self.low:g} to {self.high:g}, above 0"
            )


@dataclass(frozen=True, slots=True)
class Problem:
    """Residuals of a fit as functions of the varied parameters' logarithms."""

    model: Model
    params: Sequence[Parameter]
    varied: Sequence[Parameter]
    log_measured: Array
    weight: Array

    def log_ratio(self, x: Array) -> Array:
        """Return log(predicted/measured) of every row."""
        values = {p.name: p.start for p in self.params}
        values.update({p.name: math.exp(each) for p, each in zip(self.varied, x, strict=True)})
        with np.errstate(all="ignore"):
            predicted = np.asarray(self.model(values), dtype=np.float64)
        return (
            np.log(np.where(np.isfinite(predicted), np.maximum(predicted, _LOG_FLOOR), 1e9))
            - self.log_measured
        )

    def prior(self, x: Array) -> Array:
        """Return (log parameter - log start) / sd."""
        return np.array(
            [(each - math.log(p.start)) / p.sd_log for p, each in zip(self.varied, x, strict=True)]
        )

    def jacobian(self, x: Array, step: float | Array, span: tuple[Array, Array]) -> tuple[Array, Array]:
        """Return log ratios and their central derivatives (one-sided at a bound) over a step, or one each."""
        columns: list[Array] = []
        for i, wide in enumerate(np.broadcast_to(step, x.shape)):
            up, down = x.copy(), x.copy()
            up[i], down[i] = min(x[i] + wide, span[1][i]), max(x[i] - wide, span[0][i])
            width = up[i] - down[i]
            columns.append(
                (self.log_ratio(up) - self.log_ratio(down)) / width if width else 0.0 * self.log_measured
            )
        return self.log_ratio(x), np.stack(columns, axis=1)

    @property
    def span(self) -> tuple[Array, Array]:
        """Return the bounds of the logarithms."""
        return np.log([p.low for p in self.varied]), np.log([p.high for p in self.varied])

    def cost(self, x: Array, sd: float) -> float:
        """Return soft-L1 of the residuals plus the squared prior terms, halved."""
        z = self.log_ratio(x) / sd
        robust = np.sum(self.weight**2 * 2.0 * (np.sqrt(1.0 + z * z) - 1.0))
        return float(0.5 * (robust + np.sum(self.prior(x) ** 2)))

    def minimise(self, x: Array, sd: float, step: float, evaluations: int) -> Array:
        """Return a minimum of ``cost``: damped Gauss-Newton with the loss as weights, inside the bounds."""
        low, high = self.span
        x = np.clip(x, low, high)
        best, damping = self.cost(x, sd), 1e-2
        precision = np.array([1.0 / p.sd_log**2 for p in self.varied])
        for _ in range(evaluations):
            ratio, jacobian = self.jacobian(x, step, (low, high))
            z = ratio / sd
            loss = self.weight**2 / np.sqrt(1.0 + z * z) / sd**2
            gradient = jacobian.T @ (loss * ratio) + precision * (x - np.log([p.start for p in self.varied]))
            hessian = jacobian.T @ (jacobian * loss[:, None]) + np.diag(precision)
            free = ~(((x <= low) & (gradient > 0.0)) | ((x >= high) & (gradient < 0.0)))
            moved, previous = False, best
            for _ in range(6):
                trial = np.clip(x + _newton_step(hessian, gradient, free, damping), low, high)
                cost = self.cost(trial, sd)
                if cost < best:
                    x, best, damping, moved = trial, cost, max(damping / 5.0, 1e-6), True
                    break
                damping *= 4.0
            if not moved or previous - best < 1e-5 * max(previous, 1.0):
                return x
        return x

    def covariance(self, x: Array, sd: float, step: float) -> tuple[Array, float]:
        """Return the covariance of the logarithms, of data (weighted by the loss) and prior together, and the noise.

        Derivatives are taken over as much as each parameter is uncertain, from wide to narrow: where its effect
        comes in jumps (blocks to units), those over a short step meet one jump or none, and the error would be that
        of where a jump is. Residuals are smaller than the noise by what the parameters took up of it: the noise is
        scaled by n / (n - parameters learnt from the data).
        """
        prior = np.diag([1.0 / p.sd_log**2 for p in self.varied])
        steps = np.array([max(min(p.sd_log, _WIDEST), step) for p in self.varied])
        for _ in range(_NARROWINGS + 1):
            ratio, jacobian = self.jacobian(x, steps, self.span)
            z = ratio / sd
            loss = self.weight**2 / np.sqrt(1.0 + z * z) / sd**2
            data = jacobian.T @ (jacobian * loss[:, None])
            learnt = float(np.trace(np.linalg.pinv(data + prior, hermitian=True) @ data))
            spared = max(1.0 - learnt / len(ratio), _LEAST_SPARED)
            found = np.linalg.pinv(spared * data + prior, hermitian=True)
            steps = np.clip(np.sqrt(np.maximum(np.diag(found), 0.0)), step, steps)
        return found, sd / math.sqrt(spared)

    def unseen(
        self, x: Array, sd: float, step: float, covariance: Array, alike: Sequence[NDArray[Any]]
    ) -> tuple[Array, Array]:
        """Return every row's log(predicted/measured) by a fit without the rows like it, and what parameters add to it.

        The latter is the variance of the row's log time by the parameters' covariance.
        One Gauss-Newton step leads from the minimum of all rows to that of the others (on GEMM of H100 the mean error
        grows from 5.9 to 6.0 % so, with whole fits of the others to 6.2).

        Parameters
        ----------
        x, sd, step, covariance : minimum, noise, step of the derivatives, covariance
        alike : columns, shape (n,) each: rows that agree in one of them are left out together
        """
        ratio, jacobian = self.jacobian(x, step, self.span)
        z = ratio / sd
        loss = self.weight**2 / np.sqrt(1.0 + z * z) / sd**2
        weighted = jacobian * loss[:, None]
        hessian = jacobian.T @ weighted + np.diag([1.0 / p.sd_log**2 for p in self.varied])
        numbers = np.stack([np.unique(column, return_inverse=True)[1] for column in alike], axis=1)
        found = ratio.copy()
        for key in np.unique(numbers, axis=0):
            agrees = numbers == key
            out, own = agrees.any(axis=1), agrees.all(axis=1)
            rest = hessian - jacobian[out].T @ weighted[out]
            moved = np.linalg.pinv(rest, hermitian=True) @ (weighted[out].T @ ratio[out])
            found[own] += jacobian[own] @ np.clip(moved, -_FARTHEST, _FARTHEST)
        return found, np.maximum(np.einsum("ni,ij,nj->n", jacobian, covariance, jacobian), 0.0)

    def along(self, x: Array, sd: float, covariance: Array, i: int) -> tuple[Array, float]:
        """Return the lowest point as one parameter moves and the others follow it, and the variance of what is likely.

        The path is the line on which the others stay as likely as can be; it is looked at in steps of one percent.
        """
        ends = np.clip(x + _PATH[:, None] * (covariance[:, i] / covariance[i, i]), *self.span)
        costs = np.array([self.cost(end, sd) for end in ends])
        weights = np.exp(costs.min() - costs)
        return ends[int(np.argmin(costs))], float(np.sum(weights * _PATH**2) / np.sum(weights))


def over_jumps(
    problem: Problem, x: Array, sd: float, step: float, evaluations: int, i: int, starts: Sequence[float]
) -> tuple[Array, Array]:
    """Return the minimum and covariance where the effect of parameter ``i`` comes in jumps.

    Descent ends between two jumps. The minimum is looked for across them, and the covariance gets what lies there,
    or an even spread between the neighbours of a start if that is more: the right one may be the next.
    """
    for _ in range(_CROSSINGS):
        covariance, noise = problem.covariance(x, sd, step)
        end, _ = problem.along(x, noise, covariance, i)
        lower = problem.minimise(end, sd, step, evaluations)
        if problem.cost(lower, sd) >= problem.cost(x, sd):
            break
        x = lower
    covariance, noise = problem.covariance(x, sd, step)
    _, variance = problem.along(x, noise, covariance, i)
    variance = max(variance, float(np.mean(np.diff(np.log(np.sort(starts))))) ** 2 / 3.0)
    path = covariance[:, i] / covariance[i, i]
    return x, covariance + max(variance - covariance[i, i], 0.0) * np.outer(path, path)


def best_start(
    problem: Problem, x: Array, sd: float, scan: Mapping[str, Sequence[float]], step: float
) -> Array:
    """Return the start, or a scanned one, from which a few steps lead lowest."""
    if not scan:
        return x
    names = [p.name for p in problem.varied]
    starts = [x]
    for name, values in scan.items():
        for value in values if name in names else ():
            moved = x.copy()
            moved[names.index(name)] = math.log(value)
            starts.append(moved)
    ends = [problem.minimise(each, sd, step, _SCAN_EVALUATIONS) for each in starts]
    return min(ends, key=lambda end: problem.cost(end, sd))


def _newton_step(hessian: Array, gradient: Array, free: NDArray[np.bool_], damping: float) -> Array:
    step = np.zeros_like(gradient)
    if free.any():
        part = hessian[np.ix_(free, free)]
        damped = part + damping * np.diag(np.maximum(np.diag(part), 1e-12))
        step[free] = -np.linalg.solve(damped, gradient[free])
    return np.clip(step, -_FARTHEST, _FARTHEST)
