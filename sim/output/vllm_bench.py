"""A run in the form of vLLM's ``bench serve --save-result --save-detailed`` file, for tools that read those."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from ..books.record import RunRecord
from ..engine.request import Status
from ..metrics.figures import NS_PER_S
from ..metrics.histogram import LogHistogram
from ..metrics.latency import Mask, completed, spans_ns, tpot_ns
from ..metrics.metrics import token_counts
from ..metrics.slo import met_slo

Milliseconds = dict[str, float | None]
NS_PER_MS = 1_000_000


def vllm_bench(record: RunRecord) -> dict[str, Any]:
    """Return the keys that vLLM's serving benchmark saves, so that ``membound validate`` can read a run back.

    Times are those a client would see: TTFT and E2E include the engine profile's client overhead where it is
    known. ``date`` and ``max_output_tokens_per_s`` are None: the first would make equal runs differ, the
    second is not kept. The lists of requests lack ``itls`` and ``generated_texts``: a run keeps neither; when the
    last token came is in ``latencies``. Source of the keys: ``vllm/benchmarks/serve.py``.
    """
    done = completed(record)
    n, (inputs, outputs) = int(done.sum()), token_counts(record)
    duration_s = record.duration_s
    return {
        **_head(record),
        "duration": duration_s,
        "completed": n,
        "failed": record.n_requests - n,
        "total_input_tokens": inputs,
        "total_output_tokens": outputs,
        "request_throughput": _per_s(n, duration_s),
        "request_goodput": _goodput(record),
        "output_throughput": _per_s(outputs, duration_s),
        "total_token_throughput": _per_s(inputs + outputs, duration_s),
        "max_output_tokens_per_s": None,
        "max_concurrent_requests": _max_concurrent(record, done),
        "rtfx": 0.0,
        **_latencies(record, done),
        **_lists(record, done),
    }


def _head(record: RunRecord) -> dict[str, Any]:
    """Return what the file says about its own making."""
    model = record.provenance.get("model")
    return {
        "date": None,
        "endpoint_type": "membound",
        "backend": "membound",
        "label": record.provenance.get("engine"),
        "model_id": model,
        "tokenizer_id": model,
        "num_prompts": record.n_requests,
        "request_rate": record.provenance.get("request_rate_per_s", "inf"),
        "burstiness": record.provenance.get("burstiness", 1.0),
        "max_concurrency": record.provenance.get("max_concurrency"),
    }


def _latencies(record: RunRecord, done: Mask) -> Milliseconds:
    """Return mean, median, deviation and 99th percentile of each latency [ms]."""
    ttft, e2e = (_client_ns(record, until, done) for until in ("first_token_ns", "last_token_ns"))
    return (
        _of_times("ttft", ttft)
        | _of_times("tpot", tpot_ns(record, done))
        | _of_histogram("itl", record.itl)
        | _of_times("e2el", e2e)
    )


def _client_ns(record: RunRecord, until: str, which: Mask) -> npt.NDArray[np.float64]:
    """Return the time from sending to an event as the client sees it, of the chosen requests [ns]."""
    overhead_ns = (record.setup.client_overhead_s or 0.0) * NS_PER_S
    return spans_ns(record, "arrival_ns", until, which).astype(np.float64) + overhead_ns


def _lists(record: RunRecord, done: Mask) -> dict[str, list[Any]]:
    """Return one value of each request, in order of submission; a failed one has an error and zeros [s]."""
    requests, everyone = record.requests, np.ones_like(done)
    sent_s = (requests["arrival_ns"] - record.start_ns) / NS_PER_S
    first_s, last_s = (
        np.where(done, _client_ns(record, until, everyone) / NS_PER_S, 0.0)
        for until in ("first_token_ns", "last_token_ns")
    )
    statuses = requests["status"].tolist()
    return {
        "input_lens": requests["input_tokens"].tolist(),
        "output_lens": np.where(done, requests["output_tokens"], 0).tolist(),
        "ttfts": first_s.tolist(),
        "latencies": last_s.tolist(),
        "start_times": sent_s.tolist(),
        "errors": [
            "" if good else Status(status).name.lower()
            for good, status in zip(done.tolist(), statuses, strict=True)
        ],
    }


def _of_times(name: str, values_ns: npt.NDArray[np.floating[Any]]) -> Milliseconds:
    if not values_ns.size:
        return _named(name, None, None, None, None)
    ordered = np.sort(values_ns)
    mean = math.fsum(ordered.tolist()) / ordered.size
    deviation = math.sqrt(math.fsum(((ordered - mean) ** 2).tolist()) / ordered.size)
    return _named(name, mean, float(np.percentile(ordered, 50)), deviation, float(np.percentile(ordered, 99)))


def _of_histogram(name: str, counted: LogHistogram) -> Milliseconds:
    if not counted.total:
        return _named(name, None, None, None, None)
    median, p99 = counted.percentile_ns(50), counted.percentile_ns(99)
    return _named(name, counted.mean_ns(), median, counted.std_ns(), p99)


def _named(name: str, *values_ns: float | None) -> Milliseconds:
    statistics = ("mean", "median", "std", "p99")
    return {
        f"{statistic}_{name}_ms": None if value is None else value / NS_PER_MS
        for statistic, value in zip(statistics, values_ns, strict=True)
    }


def _per_s(amount: int, duration_s: float) -> float | None:
    return amount / duration_s if duration_s > 0 else None


def _goodput(record: RunRecord) -> float | None:
    met = met_slo(record)
    return _per_s(int(met.sum()), record.duration_s) if isinstance(met, np.ndarray) else None


def _max_concurrent(record: RunRecord, done: Mask) -> int:
    """Return the most completed requests present in one second of the run, counted as vLLM does."""
    if not done.any():
        return 0
    first = (record.requests["arrival_ns"][done] - record.start_ns) // NS_PER_S
    last = (record.requests["last_token_ns"][done] - record.start_ns) // NS_PER_S
    change = np.zeros(int(last.max()) + 2, dtype=np.int64)
    np.add.at(change, first, 1)
    np.add.at(change, last + 1, -1)
    return int(np.cumsum(change).max())
