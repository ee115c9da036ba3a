"""Steady-state estimates of a run with confidence intervals: what a longer run of the same load would show.

The requests of one run are neither independent nor, at first, typical: each waits for those before it, and the
first find an empty engine. So the series of requests, in order of arrival, loses its warm-up (MSER-5, White 1997, where
what it cuts differs from the rest by more than chance) and its drain (requests so late that the system emptied around
them); the rest is cut into batches, whose means are nearly independent. Their remaining correlation widens the
interval as that of a first-order autoregression, and their skewness shifts it (Willink 2005), as in Skart (Tafazzoli
and others 2011). Percentiles are of all the requests, with the spread of the batches' around them (sectioning). Where
the run holds too few independent observations to say, it says that instead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..books.record import RunRecord
from .figures import NS_PER_S, Figure, Figures, Unknown
from .latency import completed, spans_ns, tpot_ns
from .stability import Stability

Series = npt.NDArray[np.float64]

LEVEL = 0.95
BATCHES = 20
STUDENT = 2.0930240544083087
"""Student's t of ``BATCHES - 1`` degrees of freedom at ``LEVEL``: importing what computes it costs as much as a
thousand requests do."""
MSER_BATCH = 5
LEAST_REQUESTS = 10 * BATCHES
LEAST_INDEPENDENT = 30.0
"""Independent observations that a mean must rest on, and a percentile must have 1/6 of beyond it."""
PERCENTILES: tuple[str, ...] = ("p50", "p90", "p99")
METRICS: tuple[str, ...] = ("queue_s", "ttft_s", "tpot_s", "e2e_s")


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and its confidence interval, in the unit of the series.

    Attributes
    ----------
    estimate, low, high : with ``low <= estimate <= high`` but for strong skewness
    independent : how many independent observations would have told as much
    """

    estimate: float
    low: float
    high: float
    independent: float


def warmup(series: Series) -> int:
    """Return how many of the first values a steady state leaves out.

    The cut is MSER-5's, at most a quarter of the series, and taken only where the mean of what it cuts lies four
    standard errors from that of the rest: its minimum is random, and cutting at will biases short runs.
    """
    batches = series.size // MSER_BATCH
    if batches < 2 * BATCHES:
        return 0
    means = series[: batches * MSER_BATCH].reshape(batches, MSER_BATCH).mean(axis=1)[::-1]
    kept = np.arange(1, batches + 1)
    sums, squares = np.cumsum(means), np.cumsum(means * means)
    error = ((squares - sums * sums / kept) / kept**2)[::-1]
    cut = min(int(np.argmin(error[: batches // 2])) * MSER_BATCH, series.size // 4)
    rest = series[cut:]
    if not cut:
        return 0
    size = rest.size // BATCHES
    spread = _sections(rest).mean(axis=1).var(ddof=1) * size / cut
    return cut if abs(series[:cut].mean() - rest.mean()) > 4.0 * math.sqrt(spread) else 0


def mean_interval(series: Series) -> Interval | Unknown:
    """Return the mean of a stationary series, values in order, with its confidence interval at ``LEVEL``."""
    if series.size < LEAST_REQUESTS:
        return Unknown(f"a confidence interval takes {LEAST_REQUESTS} requests in steady state")
    means = _sections(series).mean(axis=1)
    mean, error = float(series.mean()), _error(means, float(means.mean()))
    independent = float(series.var()) / error**2 if error > 0.0 else math.inf
    if independent < LEAST_INDEPENDENT:
        return Unknown("the run is too short for a confidence interval: its requests depend on each other")
    away = means - means.mean()
    skew = BATCHES**2 / ((BATCHES - 1) * (BATCHES - 2)) * float((away**3).mean())
    spread = float(means.var(ddof=1))
    beta = skew / spread**1.5 / (6.0 * math.sqrt(BATCHES)) if spread > 0.0 else 0.0
    low, high = (mean - _unskewed(end, beta) * error for end in (STUDENT, -STUDENT))
    return Interval(mean, low, high, independent)


def percentile_interval(series: Series, percent: float, mean: Interval | Unknown) -> Interval | Unknown:
    """Return a percentile of a stationary series with its confidence interval.

    Parameters
    ----------
    series : values in order, shape (n,)
    percent : 0..100
    mean : what ``mean_interval`` says of the series; where it says nothing, nor does this
    """
    if isinstance(mean, Unknown):
        return mean
    beyond = mean.independent * min(percent, 100.0 - percent) / 100.0
    if beyond < LEAST_INDEPENDENT / 6.0:
        return Unknown(
            "the run is too short for a confidence interval: too few requests lie beyond the percentile"
        )
    estimate = float(np.percentile(series, percent))
    error = _error(np.percentile(_sections(series), percent, axis=1), estimate)
    half = STUDENT * error
    return Interval(estimate, estimate - half, estimate + half, mean.independent)


def steady_state(record: RunRecord, state: Stability) -> dict[str, object]:
    """Return what the steady state of the run's load looks like: ``steady_state`` of ``summary.json``.

    ``warmup_s``, and ``requests`` that are left between warm-up and drain; ``mean``, ``p50``, ``p90``, ``p99`` of each
    latency [s], and ``interval`` -> ``ttft_s.mean`` -> [low, high] at ``level``. All null, with the reason, where there
    was none.
    """
    if not state.steady:
        return {"level": LEVEL, **_all_unknown(f"no steady state ({state.state}): {state.reason}")}
    series, arrival = _series(record)
    if arrival.size < LEAST_REQUESTS:
        short = f"a confidence interval takes {LEAST_REQUESTS} requests in steady state"
        return {"level": LEVEL, **_all_unknown(short)}
    first, last = _typical(record, series["e2e_s"], arrival)
    figures: dict[str, Figures] = {}
    interval: dict[str, object] = {}
    for name, values in series.items():
        values = values[first:last]
        known = values[np.isfinite(values)]
        mean = mean_interval(known)
        found = {"mean": mean} | {p: percentile_interval(known, float(p[1:]), mean) for p in PERCENTILES}
        figures[name] = {key: _estimate(value) for key, value in found.items()}
        for key, value in found.items():
            interval[f"{name}.{key}"] = value if isinstance(value, Unknown) else [value.low, value.high]
    warm = float(arrival[first] - record.start_ns) / NS_PER_S
    return {"level": LEVEL, "warmup_s": warm, "requests": last - first, **figures, "interval": interval}


def _estimate(found: Interval | Unknown) -> Figure:
    return found if isinstance(found, Unknown) else found.estimate


def _all_unknown(reason: str) -> dict[str, object]:
    unknown = Unknown(reason)
    latencies = {name: dict.fromkeys(("mean", *PERCENTILES), unknown) for name in METRICS}
    return {"warmup_s": unknown, "requests": unknown, **latencies, "interval": unknown}


def _series(record: RunRecord) -> tuple[dict[str, Series], npt.NDArray[np.int64]]:
    """Return the latencies [s] of completed requests and their arrivals [ns], in order of arrival."""
    done = completed(record)
    order = np.argsort(record.requests["arrival_ns"][done], kind="stable")
    tpot = np.full(int(done.sum()), math.nan)  # one-token answers have none
    tpot[record.requests["output_tokens"][done] > 1] = tpot_ns(record, done)
    found = {
        "queue_s": spans_ns(record, "arrival_ns", "first_scheduled_ns", done),
        "ttft_s": spans_ns(record, "arrival_ns", "first_token_ns", done),
        "tpot_s": tpot,
        "e2e_s": spans_ns(record, "arrival_ns", "last_token_ns", done),
    }
    seconds = {name: values[order] / NS_PER_S for name, values in found.items()}
    return seconds, record.requests["arrival_ns"][done][order]


def _typical(record: RunRecord, e2e_s: Series, arrival: npt.NDArray[np.int64]) -> tuple[int, int]:
    """Return which completed requests, in order of arrival, came after the warm-up and before the drain."""
    drain_ns = float(np.percentile(e2e_s, 99)) * NS_PER_S
    last = int(np.searchsorted(arrival, float(arrival[-1]) - drain_ns, side="right"))
    asked = _asked_warmup_s(record)
    if asked is not None:
        return min(int(np.searchsorted(arrival, record.start_ns + asked * NS_PER_S)), last), last
    return warmup(e2e_s[:last]), last


def _asked_warmup_s(record: RunRecord) -> float | None:
    """Return ``simulation.warmup`` where the scenario says how long it is; None: to be found [s]."""
    asked = getattr(getattr(record.scenario, "simulation", None), "warmup", None)
    return float(asked) if isinstance(asked, int | float) else None


def _sections(series: Series) -> Series:
    """Return the latest values in sections of equal size, shape (BATCHES, size)."""
    size = series.size // BATCHES
    return series[series.size - size * BATCHES :].reshape(BATCHES, size)


def _error(values: Series, around: float) -> float:
    """Return the standard error of what ``values`` estimate section by section, their autocorrelation counted in."""
    away = values - values.mean()
    square = float((away * away).sum())
    if square == 0.0:
        return 0.0
    phi = float((away[1:] * away[:-1]).sum()) / square
    # The estimate's bias is taken out, to first order.
    phi = min(max(phi + (1.0 + 3.0 * phi) / BATCHES, 0.0), 0.9)
    variance = float(((values - around) ** 2).sum()) / (BATCHES - 1)
    return math.sqrt(variance / BATCHES * (1.0 + phi) / (1.0 - phi))


def _unskewed(quantile: float, beta: float) -> float:
    """Return a quantile of a skewed mean (Willink 2005); ``beta`` is its skewness over 6 sqrt(n)."""
    if abs(beta) < 1e-6:
        return quantile
    root = np.cbrt(1.0 + 6.0 * beta * (quantile - beta))
    return float((root - 1.0) / (2.0 * beta))
