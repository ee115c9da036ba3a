"""OpenMetrics text: read by Prometheus' own parser, under vLLM's names, with the summary's counts."""

from __future__ import annotations

from typing import Any

import membound as mb
import numpy as np
import pytest
from membound.sim.metrics.histogram import LogHistogram
from membound.sim.output.openmetrics import (
    GAP_BUCKETS_S,
    REQUEST_BUCKETS_S,
    TTFT_BUCKETS_S,
    counts_up_to,
    openmetrics,
)

parser = pytest.importorskip("prometheus_client.openmetrics.parser", reason="reads OpenMetrics")

SCENARIO = {
    "device": "h100_sxm",
    "model": "llama-3.1-8b",
    "workload": {
        "arrivals": {"kind": "poisson", "rate_per_s": 12},
        "input_tokens": {"kind": "lognormal", "p50": 600, "sigma": 0.8, "min": 16, "max": 4000},
        "output_tokens": {"kind": "lognormal", "p50": 100, "sigma": 0.7, "min": 1, "max": 600},
        "requests": 400,
    },
}


@pytest.fixture(scope="module")
def result() -> mb.SimulationResult:
    return mb.simulate(mb.Scenario.model_validate(SCENARIO))


@pytest.fixture(scope="module")
def families(result: mb.SimulationResult) -> dict[str, Any]:
    text = openmetrics(result.record)
    assert text.endswith("# EOF\n")
    return {family.name: family for family in parser.text_string_to_metric_families(text)}


def value(families: dict[str, Any], name: str, suffix: str = "", **labels: str) -> float:
    (found,) = [
        sample.value
        for sample in families[name].samples
        if sample.name == name + suffix and labels.items() <= sample.labels.items()
    ]
    return found


def test_every_series_says_that_it_is_simulated(families: dict[str, Any]):
    assert len(families) > 12
    for name, family in families.items():
        assert name.startswith("vllm:")
        assert all(sample.labels["simulated"] == "true" for sample in family.samples), name
        assert all(sample.labels["model_name"] == "llama-3.1-8b" for sample in family.samples), name


def test_counters_are_the_summarys(result: mb.SimulationResult, families: dict[str, Any]):
    summary, requests = result.summary(), result.record.requests
    assert value(families, "vllm:prompt_tokens", "_total") == requests["input_tokens"].sum()
    assert value(families, "vllm:generation_tokens", "_total") == requests["output_tokens"].sum()
    done = value(families, "vllm:request_success", "_total", finished_reason="length")
    assert done == summary["requests"]["completed"] == 400
    assert value(families, "vllm:kv_cache_usage_perc") == summary["kv"]["mean_usage"]


@pytest.mark.parametrize(
    ("name", "metric", "buckets"),
    [
        ("vllm:time_to_first_token_seconds", "ttft_s", TTFT_BUCKETS_S),
        ("vllm:e2e_request_latency_seconds", "e2e_s", REQUEST_BUCKETS_S),
        ("vllm:request_queue_time_seconds", "queue_s", REQUEST_BUCKETS_S),
    ],
)
def test_histograms_count_every_request_exactly(
    result: mb.SimulationResult, families: dict[str, Any], name: str, metric: str, buckets: tuple[float, ...]
):
    seconds = np.array(result.requests()[metric].to_pylist())
    for edge in buckets:
        counted = value(families, name, "_bucket", le=repr(float(edge)))
        assert counted == (seconds <= edge).sum(), (name, edge)
    count, total = value(families, name, "_count"), value(families, name, "_sum")
    assert count == value(families, name, "_bucket", le="+Inf") == len(seconds)
    assert total / count == pytest.approx(result.summary()["latency"][metric]["mean"], rel=1e-12)


def test_gaps_between_tokens_are_all_there(result: mb.SimulationResult, families: dict[str, Any]):
    name = "vllm:inter_token_latency_seconds"
    output = result.record.requests["output_tokens"]
    count = value(families, name, "_count")
    assert count == (output - 1).sum()
    mean = value(families, name, "_sum") / count
    assert mean == pytest.approx(result.summary()["latency"]["itl_s"]["mean"], rel=1e-12)
    assert families[name].type == "histogram"


def test_gaps_are_counted_right_to_the_width_of_a_bin():
    rng = np.random.default_rng(5)
    times = np.exp(rng.normal(np.log(2e7), 1.5, 20_000)).astype(np.int64)
    histogram = LogHistogram()
    histogram.add(times)
    for edge, count in zip(GAP_BUCKETS_S, counts_up_to(histogram, GAP_BUCKETS_S), strict=True):
        assert (times <= edge * 1e9 * 0.996).sum() <= count <= (times <= edge * 1e9 * 1.004).sum()


def test_token_counts_have_vllms_buckets(result: mb.SimulationResult, families: dict[str, Any]):
    outputs = result.record.requests["output_tokens"]
    edges = [s.labels["le"] for s in families["vllm:request_generation_tokens"].samples if "le" in s.labels]
    assert edges[:6] == ["1.0", "2.0", "5.0", "10.0", "20.0", "50.0"]
    for edge in edges[:-1]:
        counted = value(families, "vllm:request_generation_tokens", "_bucket", le=edge)
        assert counted == (outputs <= float(edge)).sum()


def test_a_run_without_requests_is_readable_too(make_record):
    found = {each.name: each for each in parser.text_string_to_metric_families(openmetrics(make_record([])))}
    assert value(found, "vllm:e2e_request_latency_seconds", "_count") == 0
