"""A run as OpenMetrics text under vLLM's metric names, so that boards made for a serving engine read simulated runs.

It is one scrape at the end of the run: counters and histograms hold the whole run, gauges their mean over it, and every
series says ``simulated="true"``. Names and buckets are those of ``vllm/v1/metrics/loggers.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..books.record import RunRecord
from ..metrics.figures import NS_PER_S
from ..metrics.histogram import LogHistogram, exact_sum
from ..metrics.latency import completed, spans_ns
from ..metrics.metrics import request_counts

Int64Array = npt.NDArray[np.int64]
Labels = Mapping[str, str]

TTFT_BUCKETS_S: tuple[float, ...] = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
)  # fmt: skip
GAP_BUCKETS_S: tuple[float, ...] = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
REQUEST_BUCKETS_S: tuple[float, ...] = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)  # fmt: skip
SPANS: Mapping[str, tuple[str, str, str, tuple[float, ...]]] = {
    "time_to_first_token": ("arrival_ns", "first_token_ns", "arrival to the first output token", TTFT_BUCKETS_S),
    "e2e_request_latency": ("arrival_ns", "last_token_ns", "arrival to the last output token", REQUEST_BUCKETS_S),
    "request_queue_time": ("arrival_ns", "first_scheduled_ns", "arrival to first scheduled", REQUEST_BUCKETS_S),
    "request_inference_time": (
        "first_scheduled_ns", "last_token_ns", "first scheduled to the last output token", REQUEST_BUCKETS_S,
    ),
    "request_prefill_time": (
        "first_scheduled_ns", "first_token_ns", "first scheduled to the first output token", REQUEST_BUCKETS_S,
    ),
    "request_decode_time": (
        "first_token_ns", "last_token_ns", "first to last output token", REQUEST_BUCKETS_S,
    ),
}  # fmt: skip
"""Histogram of seconds -> the two events between which they lie, what it is, and its buckets."""


def openmetrics(record: RunRecord) -> str:
    """Return a run as OpenMetrics text.

    Times are of completed requests. The counts of all histograms but one are exact; gaps between tokens are counted in
    bins at most 0.39 % wide, so that an edge of theirs is off by as much, while their count and sum are exact.
    """
    return "".join(f"{line}\n" for line in (*_lines(record), "# EOF"))


def _lines(record: RunRecord) -> Iterator[str]:
    labels = {"model_name": str(record.provenance.get("model") or ""), "engine": "0", "simulated": "true"}
    done = completed(record)
    yield from _gauges(record, labels)
    yield from _counters(record, labels)
    for name, (since, until, what, buckets) in SPANS.items():
        values = spans_ns(record, since, until, done)
        yield from _seconds(f"vllm:{name}_seconds", what, labels, buckets, values)
    yield from _gaps(record, labels)
    tokens = {"request_prompt_tokens": "input_tokens", "request_generation_tokens": "output_tokens"}
    for name, column in tokens.items():
        values = record.requests[column][done].astype(np.int64)
        edges = one_two_five(int(values.max(initial=1)))
        counts = np.searchsorted(np.sort(values), edges, side="right")
        what = f"{column.partition('_')[0]} tokens of completed requests"
        yield from _head(f"vllm:{name}", "histogram", what)
        yield from _histogram(
            f"vllm:{name}", labels, edges, counts.tolist(), len(values), str(exact_sum(values))
        )


def _gauges(record: RunRecord, labels: Labels) -> Iterator[str]:
    served = record.requests["first_scheduled_ns"] >= 0
    finished = served & (record.requests["last_token_ns"] >= 0)
    duration = record.end_ns - record.start_ns
    usage = record.kv.get("mean_usage")
    found: dict[str, tuple[str, float | None]] = {
        "num_requests_running": (
            "requests in service",
            _mean(exact_sum(spans_ns(record, "first_scheduled_ns", "last_token_ns", finished)), duration),
        ),
        "num_requests_waiting": (
            "requests that wait to be scheduled for the first time",
            _mean(exact_sum(spans_ns(record, "arrival_ns", "first_scheduled_ns", served)), duration),
        ),
        "kv_cache_usage_perc": (
            "share of KV blocks in use, 1 is all",
            None if usage is None else float(usage),
        ),
    }
    for name, (what, value) in found.items():
        if value is not None:
            yield from _head(f"vllm:{name}", "gauge", f"{what}: mean over the run")
            yield _sample(f"vllm:{name}", labels, repr(value))


def _mean(total_ns: int, duration_ns: int) -> float | None:
    return total_ns / duration_ns if duration_ns > 0 else None


def _counters(record: RunRecord, labels: Labels) -> Iterator[str]:
    done, counts = completed(record), request_counts(record)
    totals: dict[str, tuple[str, int | None]] = {
        "prompt_tokens": (
            "input tokens of completed requests",
            exact_sum(record.requests["input_tokens"][done]),
        ),
        "generation_tokens": (
            "output tokens of completed requests",
            exact_sum(record.requests["output_tokens"][done]),
        ),
        "num_preemptions": ("preemptions", counts["preemptions"]),
        "prefix_cache_queries": (
            "tokens looked up in the prefix cache",
            _known(record, "prefix_queried_tokens"),
        ),
        "prefix_cache_hits": ("tokens found in the prefix cache", _known(record, "prefix_hit_tokens")),
    }
    for name, (what, value) in totals.items():
        if value is not None:
            yield from _head(f"vllm:{name}", "counter", what)
            yield _sample(f"vllm:{name}_total", labels, str(value))
    yield from _head("vllm:request_success", "counter", "requests by how they ended")
    for reason, name in (("length", "completed"), ("abort", "aborted"), ("error", "rejected")):
        yield _sample("vllm:request_success_total", {**labels, "finished_reason": reason}, str(counts[name]))


def _known(record: RunRecord, name: str) -> int | None:
    value = record.kv.get(name)
    return None if value is None else int(value)


def _seconds(
    name: str, what: str, labels: Labels, buckets: Sequence[float], values_ns: Int64Array
) -> Iterator[str]:
    """Yield a histogram of times, each counted exactly."""
    yield from _head(name, "histogram", f"{what}, of completed requests", "seconds")
    edges = np.rint(np.array(buckets) * NS_PER_S).astype(np.int64)
    counts = np.searchsorted(np.sort(values_ns), edges, side="right")
    total = repr(exact_sum(values_ns) / NS_PER_S)
    yield from _histogram(name, labels, buckets, counts.tolist(), len(values_ns), total)


def _gaps(record: RunRecord, labels: Labels) -> Iterator[str]:
    name = "vllm:inter_token_latency_seconds"
    yield from _head(name, "histogram", "gap between output tokens, in bins 0.39 % wide", "seconds")
    counts = counts_up_to(record.itl, GAP_BUCKETS_S)
    yield from _histogram(
        name, labels, GAP_BUCKETS_S, counts, record.itl.total, repr(record.itl.sum_ns / NS_PER_S)
    )


def counts_up_to(histogram: LogHistogram, edges_s: Sequence[float]) -> list[int]:
    """Return how many times are at most each edge; a bin that an edge cuts counts where its middle lies."""
    low, high, counts = histogram.nonempty()
    below = np.concatenate(([0], np.cumsum(counts)))
    edges_ns = np.array(edges_s) * NS_PER_S
    found = below[np.searchsorted((low + high) / 2, edges_ns, side="right")]
    if histogram.max_ns is not None:
        found = np.where(edges_ns >= histogram.max_ns, histogram.total, found)
    return [int(each) for each in found]


def one_two_five(most: int) -> list[int]:
    """Return vLLM's buckets of token counts: 1, 2, 5, 10, ... up to the first that is ``most`` or more.

    >>> one_two_five(60)
    [1, 2, 5, 10, 20, 50, 100]
    """
    found: list[int] = []
    scale = 1
    while not found or found[-1] < most:
        found += [scale * digit for digit in (1, 2, 5) if not found or found[-1] < most]
        scale *= 10
    return found[: next(at for at, edge in enumerate(found) if edge >= most) + 1]


def _histogram(
    name: str, labels: Labels, edges: Sequence[float], counts: Sequence[int], total: int, summed: str
) -> Iterator[str]:
    for edge, count in zip(edges, counts, strict=True):
        yield _sample(f"{name}_bucket", {**labels, "le": repr(float(edge))}, str(count))
    yield _sample(f"{name}_bucket", {**labels, "le": "+Inf"}, str(total))
    yield _sample(f"{name}_count", labels, str(total))
    yield _sample(f"{name}_sum", labels, summed)


def _head(name: str, kind: str, what: str, unit: str = "") -> Iterator[str]:
    yield f"# TYPE {name} {kind}"
    if unit:
        yield f"# UNIT {name} {unit}"
    yield f"# HELP {name} Simulated: {what}."


def _sample(name: str, labels: Labels, value: str) -> str:
    inside = ",".join(f'{key}="{_escaped(each)}"' for key, each in labels.items())
    return f"{name}{{{inside}}} {value}"


def _escaped(text: Any) -> str:
    return str(text).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
