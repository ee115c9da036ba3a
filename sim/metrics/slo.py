"""Goodput: which requests met every threshold of their service-level objective."""

from __future__ import annotations

from ..books.record import RunRecord
from .figures import NS_PER_S, Figures, Unknown
from .latency import Mask, completed, spans_ns

SLO_METRICS: tuple[str, ...] = ("queue_s", "ttft_s", "client_ttft_s", "tpot_s", "e2e_s")
"""Metrics that every request has a value of, so that a threshold can be held against it."""


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
            late = _later_than(record, metric, limit_s, members)
            if isinstance(late, Unknown):
                return late
            met[members] &= ~late
    return met


def _later_than(record: RunRecord, metric: str, limit_s: float, which: Mask) -> Mask | Unknown:
    """Return which of the chosen requests exceed ``limit_s``, shape (n_chosen,)."""
    limit_ns = limit_s * NS_PER_S
    if metric == "client_ttft_s":
        if record.setup.client_overhead_s is None:
            return Unknown("client_ttft_s has a threshold, and the engine profile has no client overhead")
        metric, limit_ns = "ttft_s", (limit_s - record.setup.client_overhead_s) * NS_PER_S
    if metric == "tpot_s":
        gaps = record.requests["output_tokens"][which] - 1
        return spans_ns(record, "first_token_ns", "last_token_ns", which) > limit_ns * gaps
    until = {"queue_s": "first_scheduled_ns", "ttft_s": "first_token_ns", "e2e_s": "last_token_ns"}.get(
        metric
    )
    if until is None:
        return Unknown(
            f"{metric} has a threshold, and is not kept by request; kept: {', '.join(SLO_METRICS)}"
        )
    return spans_ns(record, "arrival_ns", until, which) > limit_ns


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
