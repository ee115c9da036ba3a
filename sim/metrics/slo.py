"""Goodput: which requests met every threshold of their service-level objective."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from ..books.record import RunRecord
from .figures import NS_PER_S, Figures, Unknown
from .latency import Mask, completed

Count = TypeVar("Count", int, npt.NDArray[np.int64])
Late = bool | Mask | Unknown

SLO_METRICS: tuple[str, ...] = ("queue_s", "ttft_s", "client_ttft_s", "tpot_s", "e2e_s")
"""Metrics that every request has a value of, so that a threshold can be held against it."""
_UNTIL = {"queue_s": "first_scheduled_ns", "ttft_s": "first_token_ns", "e2e_s": "last_token_ns"}


def met_slo(record: RunRecord) -> Mask | Unknown:
    """Return which completed requests met every threshold of their class, shape (n_requests,).

    A class without thresholds is met by completing. A one-token answer has no TPOT, and so none to miss.
    """
    if not record.setup.slo_classes:
        return Unknown("the scenario states no SLO")
    met = completed(record).copy()
    for name, thresholds in record.setup.slo_classes.items():
        if name not in record.slo_classes:
            continue
        members = met & (record.requests["slo_class"] == list(record.slo_classes).index(name))
        for metric, limit_s in thresholds.items():
            late = later_than(
                metric,
                limit_s,
                lambda name, which=members: record.requests[name][which],
                record.setup.client_overhead_s,
            )
            if isinstance(late, Unknown):
                return late
            met[members] &= np.logical_not(late)
    return met


def later_than(metric: str, limit_s: float, of: Callable[[str], Count], overhead_s: float | None) -> Late:
    """Return whether requests that have completed exceed ``limit_s``.

    Parameters
    ----------
    metric : one of ``SLO_METRICS``
    of : a request's moments [ns] and output tokens by the name of their column: of one request, or of many at once
    overhead_s : server and network time that a client sees, where it is known [s]
    """
    limit_ns = limit_s * NS_PER_S
    if metric == "client_ttft_s":
        if overhead_s is None:
            return Unknown("client_ttft_s has a threshold, and the engine profile has no client overhead")
        metric, limit_ns = "ttft_s", (limit_s - overhead_s) * NS_PER_S
    if metric == "tpot_s":
        return of("last_token_ns") - of("first_token_ns") > limit_ns * (of("output_tokens") - 1)
    until = _UNTIL.get(metric)
    if until is None:
        return Unknown(
            f"{metric} has a threshold, and is not kept by request; kept: {', '.join(SLO_METRICS)}"
        )
    return of(until) - of("arrival_ns") > limit_ns


def slo(record: RunRecord) -> Figures:
    """Return whether the SLO was met, the goodput and the share of the submitted requests that met it.

    A rejected, aborted or unfinished request has not met it. ``goodput_per_s`` is over the run's duration.
    """
    met = met_slo(record)
    if isinstance(met, Unknown):
        return dict.fromkeys(("met", "goodput_per_s", "attainment"), met)
    if record.n_requests == 0:
        return dict.fromkeys(("met", "goodput_per_s", "attainment"), Unknown("no request was submitted"))
    good, duration_ns = int(met.sum()), record.end_ns - record.start_ns
    attainment, target = good / record.n_requests, record.setup.slo_attainment
    return {
        "met": Unknown("the scenario states no attainment to reach")
        if target is None
        else attainment >= target,
        "goodput_per_s": good * NS_PER_S / duration_ns
        if duration_ns > 0
        else Unknown("no token was delivered"),
        "attainment": attainment,
    }
