"""What fitting an engine's step parameters found: estimates with errors, and how far off the runs are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..hwmodels.engine import EngineProfile
from .engineprofile import with_step


@dataclass(frozen=True, slots=True)
class Estimate:
    """One step parameter.

    Attributes
    ----------
    name : of ``StepSection``
    value, stderr : estimate and its standard error, in ``unit``; infinite where the runs do not tell
    start, prior : where the search began, and the profile's standard error
    jackknife : standard error from leaving whole runs out; None for too few runs
    unit : as the engine file has it
    """

    name: str
    value: float
    stderr: float
    start: float
    prior: float
    jackknife: float | None
    unit: str

    @property
    def known(self) -> bool:
        """Whether the runs say more of it than the profile did."""
        return math.isfinite(self.stderr) and (self.prior == 0.0 or self.stderr < self.prior)

    @property
    def error(self) -> float:
        """The larger of the two standard errors."""
        return max(self.stderr, self.jackknife or 0.0)


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """Signed errors of one run, simulated / measured - 1, by figure.

    Attributes
    ----------
    run_id : which
    fitted : whether the fit saw it
    before, after : with the parameters that the search began with, and with the fitted ones [-]
    left_out : with a fit to the other runs alone; None where they do not suffice [-]
    """

    run_id: str
    fitted: bool
    before: Mapping[str, float]
    after: Mapping[str, float]
    left_out: Mapping[str, float] | None


@dataclass(frozen=True, slots=True)
class EngineFit:
    """An engine whose step parameters were fitted.

    Attributes
    ----------
    base : the profile that the fit began with
    estimates : the parameters
    outcomes : the runs, those that were left out from the start last
    spread : root mean square of the residuals, of the fitted runs, in units of what a run may be off [-]
    evaluations : how often all runs were simulated
    notes : what was assumed, one line each
    through : the one device that served all fitted runs; empty where there were several
    """

    base: EngineProfile
    estimates: tuple[Estimate, ...]
    outcomes: tuple[RunOutcome, ...]
    spread: float
    evaluations: int
    notes: tuple[str, ...] = ()
    through: str = ""

    def profile(self, name: str) -> EngineProfile:
        """Return the fitted engine under an id; a parameter that no run shows keeps the value it had."""
        kept = [each for each in self.estimates if math.isfinite(each.stderr)]
        fitted = [each.run_id for each in self.outcomes if each.fitted]
        runs = ", ".join(fitted[:3]) + (f" and {len(fitted) - 3} more" if len(fitted) > 3 else "")
        changed = with_step(
            self.base,
            {each.name: float(f"{each.value:.5g}") for each in kept},
            f"fit-engine on {len(fitted)} runs: {runs}",
            {each.name: float(f"{each.error:.3g}") for each in kept},
            run=name,
        )
        notes = f"Step parameters fitted on measured runs, from {self.base.id}."
        rate = any(each.name == "engine_gemm_efficiency" for each in kept)
        through = self.through if rate else self.base.fitted_through
        served = self.base.served if through == self.base.fitted_through else None
        kept_of_base = {"fitted_through": through, "served": served}
        return changed.model_copy(update={"id": name, "aliases": (), "notes": notes, **kept_of_base})

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON knows it."""
        return {
            "engine": self.base.id,
            "estimates": [
                {"name": each.name, "value": each.value, "stderr": _finite(each.stderr), "unit": each.unit,
                 "jackknife": each.jackknife, "start": each.start, "prior_stderr": each.prior, "known": each.known}
                for each in self.estimates
            ],
            "runs": [
                {"run_id": each.run_id, "fitted": each.fitted, "before": dict(each.before), "after": dict(each.after),
                 "left_out": None if each.left_out is None else dict(each.left_out)}
                for each in self.outcomes
            ],
            "spread": self.spread,
            "evaluations": self.evaluations,
            "notes": list(self.notes),
        }  # fmt: skip


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def jackknife(left_out: Sequence[Sequence[float]]) -> list[float] | None:
    """Return the standard error of every parameter from its estimates without one group each; None below three.

    >>> jackknife([[1.0], [2.0], [3.0]])
    [1.1547005383792515]
    """
    n = len(left_out)
    if n < 3:
        return None
    means = [math.fsum(column) / n for column in zip(*left_out, strict=True)]
    squares = [
        math.fsum((value - mean) ** 2 for value in column)
        for column, mean in zip(zip(*left_out, strict=True), means, strict=True)
    ]
    return [math.sqrt((n - 1) / n * square) for square in squares]
