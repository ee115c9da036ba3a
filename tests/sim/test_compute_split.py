"""Prefill and decode on shares of the compute units: what a run does with them, and what is refused."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from membound.hwmodels.errors import MemboundError
from membound.sim.run import simulate
from membound.sim.scenario import parse_scenario

SCENARIO: dict[str, Any] = {
    "device": "h100_sxm",
    "model": "llama-3.1-8b",
    "kv_cache": {"max_model_len": 8192},
    "workload": {
        "arrivals": {"kind": "poisson", "rate_per_s": 10},
        "input_tokens": {"kind": "lognormal", "p50": 1500, "p99": 5000, "max": 6000},
        "output_tokens": {"kind": "lognormal", "p50": 60, "p99": 300, "max": 400},
        "requests": 60,
    },
    "compute_split": {"prefill": 0.6, "decode": 0.4},
}


def run(*sets: str) -> dict[str, Any]:
    return simulate(parse_scenario(copy.deepcopy(SCENARIO), list(sets)), keep_steps=True).summary()


@pytest.fixture(scope="module")
def split() -> dict[str, Any]:
    return run()


@pytest.fixture(scope="module")
def serial() -> dict[str, Any]:
    return run("compute_split=null", "scheduler.async_scheduling=false")


def test_prefill_no_longer_stands_in_the_way_of_decode(split: dict[str, Any], serial: dict[str, Any]) -> None:
    """Tokens come evenly; the first one takes longer, on fewer units."""
    assert split["requests"] == serial["requests"]
    assert split["latency"]["itl_s"]["p99"] < 0.6 * serial["latency"]["itl_s"]["p99"]
    assert split["latency"]["ttft_s"]["mean"] > serial["latency"]["ttft_s"]["mean"]


def test_more_units_for_prefill_shorten_the_first_token_and_lengthen_the_others() -> None:
    few, many = (run(f"compute_split={{prefill: {share}, decode: {1 - share}}}") for share in (0.3, 0.75))
    assert many["latency"]["ttft_s"]["mean"] < few["latency"]["ttft_s"]["mean"]
    assert many["latency"]["tpot_s"]["mean"] > few["latency"]["tpot_s"]["mean"]


def test_the_device_s_time_adds_up_and_no_resource_is_used_more_than_there_is(split: dict[str, Any]) -> None:
    assert sum(split["time_share"].values()) == pytest.approx(1.0, abs=1e-9)
    assert sum(split["limiter"].values()) == pytest.approx(1.0, abs=1e-9)
    for name in ("gpu_util", "tensor_active", "dram_active", "mfu", "mbu"):
        assert 0 < split["utilization"][name] <= 1
    assert split["utilization"]["sm_active"] is None
    assert split["contention"]["waited_share"]["compute"] > 0
    assert set(split["streams"]) == {"prefill", "decode"}


def test_one_gpu_is_paid_for(split: dict[str, Any], serial: dict[str, Any]) -> None:
    rates = split["throughput"]
    assert rates["output_tokens_per_s_per_gpu"] == rates["output_tokens_per_s"]
    assert split["cost"]["usd_per_gpu_hour"] == serial["cost"]["usd_per_gpu_hour"]


def test_what_one_stream_does_alone_is_what_the_device_does() -> None:
    """Answers of one token are prefill only: nobody is beside it, so it has all units."""
    sets = ("workload.output_tokens=1", "scheduler.async_scheduling=false")
    assert run(*sets)["latency"] == run("compute_split=null", *sets)["latency"]


def test_a_short_pool_preempts_and_computes_again() -> None:
    found = run("kv_cache.num_gpu_blocks_override=600", "workload.output_tokens=300")
    assert found["requests"]["completed"] == 60
    assert found["requests"]["preemptions"] > 0
    assert found["kv"]["peak_usage"] > 0.9


def test_seats_are_those_of_both_streams() -> None:
    found = simulate(parse_scenario(copy.deepcopy(SCENARIO), ["scheduler.max_num_seqs=3"]), keep_steps=True)
    requests = found.record.requests
    events = [(start, 1) for start in requests["first_scheduled_ns"].tolist()]
    events += [(end, -1) for end in requests["last_token_ns"].tolist()]
    running = most = 0
    for _, change in sorted(events):
        running += change
        most = max(most, running)
    assert most == 3


def test_two_runs_are_the_same_and_the_label_is_there(split: dict[str, Any]) -> None:
    assert run() == split
    said = split["confidence"]["warnings"]
    assert any(text.startswith("compute_split is an unvalidated lever") for text in said)
    assert not any(text.startswith("cluster") for text in said)


@pytest.mark.parametrize("fidelity", ["step", "kernel"])
def test_it_runs_by_kernels_and_with_a_group(fidelity: str) -> None:
    found = run(
        f"simulation.fidelity={fidelity}", "parallelism.tensor_parallel_size=2", "workload.requests=20"
    )
    assert found["requests"]["completed"] == 20


@pytest.mark.parametrize(
    ("sets", "says"),
    [
        (["compute_split={prefill: 0.8, decode: 0.4}"], ["compute_split", "0.8", "0.4", "above 1"]),
        (["compute_split={prefill: 0, decode: 0.4}"], ["compute_split.prefill"]),
        (["compute_split={prefill: 0.5}"], ["compute_split.decode"]),
        (["compute_split={prefil: 0.5, decode: 0.5}"], ["prefil", "prefill"]),
        (["scheduler.name=sjf"], ["scheduler.name", "vllm_v1"]),
        (["scheduler.preemption_mode=swap"], ["scheduler.preemption_mode", "recompute"]),
        (["scheduler.async_scheduling=true"], ["scheduler.async_scheduling", "auto, false"]),
        (["kv_cache.allocator=contiguous"], ["kv_cache.allocator", "paged"]),
        (["kv_cache.tiers=[{kind: dram}]"], ["kv_cache.tiers", "[]"]),
        (["kv_cache.eviction={kind: window}"], ["kv_cache.eviction", "null"]),
        (
            ["speculative={method: ngram, num_speculative_tokens: 2, acceptance: 0.5}"],
            ["speculative", "null"],
        ),
        (["cluster.replicas=2"], ["cluster", "one replica"]),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(sets: list[str], says: list[str]) -> None:
    with pytest.raises(MemboundError) as caught:
        run(*sets)
    text = str(caught.value)
    assert "\n" not in text
    assert all(part in text for part in says), text
