"""What a live validation found: predicted beside served, and how far repeats differ."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ..hwmodels.model import ModelSpec
from .livesteps import StepFit

METRICS: Final = (
    ("throughput", "tokens_per_s", "tok/s", 1.0, 0.08),
    ("mean TPOT", "tpot_s", "ms", 1e3, 0.08),
    ("mean TTFT", "ttft_s", "ms", 1e3, 0.15),
)
"""Name, field, unit shown, factor to it, and the largest error that counts as right [-]."""


@dataclass(frozen=True, slots=True)
class LoadFigures:
    """What a load came to.

    Attributes
    ----------
    tokens_per_s, requests_per_s : output tokens and requests over the time from first arrival to last token
    ttft_s : mean time from arrival to first token [s]
    tpot_s : mean over requests of the time between their tokens after the first [s]
    duration_s : first arrival to last token [s]
    requests, steps : how many
    """

    tokens_per_s: float
    requests_per_s: float
    ttft_s: float
    tpot_s: float
    duration_s: float
    requests: int
    steps: int


def figures_of(
    arrival_ns: NDArray[np.int64],
    first_ns: NDArray[np.int64],
    last_ns: NDArray[np.int64],
    output_tokens: NDArray[np.int64],
    *,
    steps: int,
) -> LoadFigures:
    """Return the figures of a served load from its requests' times, each of shape (requests,)."""
    duration_s = float(last_ns.max() - arrival_ns.min()) * 1e-9
    more = output_tokens > 1
    gaps = (last_ns - first_ns)[more] / (output_tokens[more] - 1)
    return LoadFigures(
        tokens_per_s=float(output_tokens.sum()) / duration_s,
        requests_per_s=len(arrival_ns) / duration_s,
        ttft_s=float((first_ns - arrival_ns).mean()) * 1e-9,
        tpot_s=float(gaps.mean()) * 1e-9 if len(gaps) else 0.0,
        duration_s=duration_s,
        requests=len(arrival_ns),
        steps=steps,
    )


@dataclass(frozen=True, slots=True)
class Comparison:
    """One figure of one load.

    Attributes
    ----------
    load, metric, unit : which
    predicted, served : the simulator's, and the mean of the repeats, in ``unit``
    error : predicted over served, less one [-]
    at_first : the same of the prediction made before the first load was served [-]
    noise : largest less smallest repeat over their mean [-]
    repeats : each repeat, in ``unit``
    bar : largest error that counts as right [-]
    """

    load: str
    metric: str
    unit: str
    predicted: float
    served: float
    error: float
    at_first: float
    noise: float
    repeats: tuple[float, ...]
    bar: float

    def row(self) -> dict[str, str | float]:
        """Return the figure as columns."""
        return {
            "load": self.load,
            "metric": self.metric,
            "unit": self.unit,
            "predicted": self.predicted,
            "served": self.served,
            "error": self.error,
            "error_at_first": self.at_first,
            "noise": self.noise,
            "bar": self.bar,
        }


@dataclass(frozen=True, slots=True)
class LoadReport:
    """One load, predicted (``at_first`` from the steps before the first load alone) and served several times."""

    name: str
    predicted: LoadFigures
    at_first: LoadFigures
    served: tuple[LoadFigures, ...]

    def comparisons(self) -> Iterator[Comparison]:
        """Yield every figure."""
        for metric, field, unit, factor, bar in METRICS:
            repeats = tuple(factor * getattr(each, field) for each in self.served)
            mean, told = sum(repeats) / len(repeats), factor * getattr(self.predicted, field)
            noise = (max(repeats) - min(repeats)) / mean
            first = factor * getattr(self.at_first, field) / mean - 1.0
            yield Comparison(
                self.name, metric, unit, told, mean, told / mean - 1.0, first, noise, repeats, bar
            )


@dataclass(frozen=True, slots=True)
class LiveReport:
    """A live validation.

    Attributes
    ----------
    device, clock, model : what served, and what told the time
    fit : step parameters and how they fit
    loads : the judged loads
    seconds : all of it took, wall time [s]
    """

    device: str
    clock: str
    model: ModelSpec
    fit: StepFit
    loads: tuple[LoadReport, ...]
    seconds: float

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        """Every figure of every load."""
        return tuple(found for load in self.loads for found in load.comparisons())

    def within(self, most: float | None = None) -> bool:
        """Tell whether every error is within ``most``, or within its own bar if that is None."""
        return all(abs(each.error) <= (each.bar if most is None else most) for each in self.comparisons)

    def describe(self) -> str:
        """Return the report as a table."""
        model = self.model
        lines = [
            f"{self.device}: {model.n_layers} layers of {model.hidden} served for real, told by {self.clock}",
            *self.fit.describe().split("\n"),
            "",
            f"{'load':<11} {'figure':<10} {'predicted':>9} {'served':>8}         error at first noise  bar  repeats",
        ]
        for each in self.comparisons:
            figures = f"{each.predicted:>9.4g} {each.served:>8.4g} {each.unit:<5}"
            errors = f"{100 * each.error:>+6.1f} % {100 * each.at_first:>+6.1f} % {100 * each.noise:>4.0f} %"
            repeats = " ".join(f"{value:.4g}" for value in each.repeats)
            lines.append(
                f"{each.load:<11} {each.metric:<10} {figures} {errors} {100 * each.bar:>2.0f} %  {repeats}"
            )
        for load in self.loads:
            lines.append(
                f"{load.name}: {load.predicted.requests} requests, {load.predicted.steps} steps predicted, "
                f"{', '.join(str(each.steps) for each in load.served)} served"
            )
        lines += [
            "error: predicted from steps of other loads, taken in turns with these; at first: from those before them",
            f"noise: largest less smallest of {len(self.loads[0].served)} repeats, over their mean",
        ]
        verdict = "within the bars" if self.within() else "NOT within the bars"
        lines.append(f"{verdict}; {self.seconds:.0f} s in all")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        engine = self.fit.engine
        return {
            "device": self.device,
            "clock": self.clock,
            "layers": self.model.n_layers,
            "step": {
                "host_exposed_s": engine.host_exposed_s,
                "host_per_seq_s": engine.host_per_seq_s,
                "engine_gemm_efficiency": engine.engine_gemm_efficiency,
                "elementwise_t0_s": engine.elementwise_t0_s,
                "elementwise_eb": engine.elementwise_eb,
                "steps": self.fit.steps,
                "mape": self.fit.mape,
            },
            "comparisons": [{**each.row(), "repeats": list(each.repeats)} for each in self.comparisons],
            "within": self.within(),
            "seconds": self.seconds,
        }

    def to_csv(self) -> str:
        """Return the figures as CSV, one a row."""
        rows = [each.row() for each in self.comparisons]
        return "".join(
            ",".join(str(cell) for cell in line) + "\n" for line in (rows[0], *(row.values() for row in rows))
        )
