"""Latencies of a run, defined as vLLM defines them: pure functions of its record.

Nothing here depends on the order in which requests finished: sums of times are whole nanoseconds, sums of
fractions are ``math.fsum``, percentiles are taken of sorted values. So the same run prints the same digits.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from ..books.record import RunRecord
from ..engine.request import Status
from .figures import NO_COMPLETED, NS_PER_S, Figures, Unknown
from .histogram import LogHistogram, exact_sum

Mask = npt.NDArray[np.bool_]

STATISTICS: tuple[str, ...] = ("mean", "p50", "p90", "p95", "p99", "max")
LATENCIES: tuple[str, ...] = ("queue_s", "ttft_s", "client_ttft_s", "tpot_s", "itl_s", "e2e_s")


def percentile(ordered: npt.NDArray[np.int64], percent: float) -> Fraction:
    """Return a percentile of whole numbers, exactly.

    Defined as numpy's default: position ``(n - 1) percent / 100`` of the sorted values, linear in between.

    Parameters
    ----------
    ordered : values in ascending order, shape (n,), n > 0
    percent : 0..100

    Examples
    --------
    >>> percentile(np.array([10, 20, 40]), 75)
    Fraction(30, 1)
    """
    position = (ordered.size - 1) * Fraction(str(percent)) / 100
    rank = math.floor(position)
    low = int(ordered[rank])
    if position == rank:
        return Fraction(low)
    return low + (position - rank) * (int(ordered[rank + 1]) - low)


def completed(record: RunRecord) -> Mask:
    """Return which requests delivered their whole answer, shape (n_requests,)."""
    return record.with_status(Status.COMPLETED)


def spans_ns(record: RunRecord, since: str, until: str, which: Mask) -> npt.NDArray[np.int64]:
    """Return the time between two events of the chosen requests, shape (n_chosen,) [ns]."""
    return record.requests[until][which] - record.requests[since][which]


def tpot_ns(record: RunRecord, which: Mask) -> npt.NDArray[np.float64]:
    """Return (last token - first token) / (output tokens - 1) of the chosen with two tokens or more [ns]."""
    chosen = which & (record.requests["output_tokens"] > 1)
    gaps = record.requests["output_tokens"][chosen] - 1
    return spans_ns(record, "first_token_ns", "last_token_ns", chosen) / gaps


def latency(record: RunRecord) -> dict[str, Figures]:
    """Return the table of latencies [s] of completed requests: metric -> statistic -> value.

    ``queue_s`` arrival to first scheduled; ``ttft_s`` arrival to the end of the step that emits the first
    token; ``client_ttft_s`` adds the server and network time a client sees; ``tpot_s`` leaves out one-token
    answers; ``itl_s`` counts every emission after a request's first once, preemption included; ``e2e_s``
    arrival to last token.
    """
    done = completed(record)
    if not done.any():
        return {name: _all_unknown(NO_COMPLETED) for name in LATENCIES}
    ttft = _statistics(spans_ns(record, "arrival_ns", "first_token_ns", done))
    return {
        "queue_s": _statistics(spans_ns(record, "arrival_ns", "first_scheduled_ns", done)),
        "ttft_s": ttft,
        "client_ttft_s": _shifted(ttft, record.setup.client_overhead_s),
        "tpot_s": _statistics_of_floats(tpot_ns(record, done)),
        "itl_s": _statistics_of_histogram(record.itl),
        "e2e_s": _statistics(spans_ns(record, "arrival_ns", "last_token_ns", done)),
    }


def _all_unknown(reason: str) -> Figures:
    return {name: Unknown(reason) for name in STATISTICS}


def _percents() -> list[tuple[str, int]]:
    return [(name, int(name[1:])) for name in STATISTICS if name.startswith("p")]


def _statistics(values_ns: npt.NDArray[np.int64]) -> Figures:
    """Return the statistics [s] of whole times [ns], each correctly rounded from its exact value."""
    ordered = np.sort(values_ns)
    found: Figures = {"mean": exact_sum(ordered) / (ordered.size * NS_PER_S)}
    found |= {name: float(percentile(ordered, p) / NS_PER_S) for name, p in _percents()}
    return found | {"max": int(ordered[-1]) / NS_PER_S}


def _statistics_of_floats(values_ns: npt.NDArray[np.float64]) -> Figures:
    """Return the statistics [s] of times that are not whole [ns]."""
    if not values_ns.size:
        return _all_unknown("no completed request has more than one output token")
    ordered = np.sort(values_ns)
    found: Figures = {"mean": math.fsum(ordered.tolist()) / ordered.size / NS_PER_S}
    found |= {name: float(np.percentile(ordered, p)) / NS_PER_S for name, p in _percents()}
    return found | {"max": float(ordered[-1]) / NS_PER_S}


def _statistics_of_histogram(histogram: LogHistogram) -> Figures:
    """Return the statistics [s] of counted times: mean and maximum exact, percentiles within 0.39 %."""
    if histogram.max_ns is None:
        return _all_unknown("no request emitted twice")
    found: Figures = {"mean": histogram.mean_ns() / NS_PER_S}
    found |= {name: histogram.percentile_ns(p) / NS_PER_S for name, p in _percents()}
    return found | {"max": histogram.max_ns / NS_PER_S}


def _shifted(figures: Figures, by_s: float | None) -> Figures:
    if by_s is None:
        return _all_unknown("the engine profile has no client overhead")
    return {name: value + by_s for name, value in figures.items() if isinstance(value, float)}


def itl_by_position(record: RunRecord) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]] | None:
    """Return output positions p >= 1 that were reached, and the mean gap before each [s]; None if unknown."""
    if record.itl_by_position is None:
        return None
    total_ns, count = record.itl_by_position
    reached = np.flatnonzero(count)
    return reached.astype(np.int64), total_ns[reached] / count[reached] / NS_PER_S
