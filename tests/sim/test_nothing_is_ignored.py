"""Every leaf of a scenario changes the run, or is refused in one line: none is taken and then forgotten."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from membound.hwmodels.errors import MemboundError
from membound.sim.run import simulate
from membound.sim.scenario import parse_scenario

SCENARIO: dict[str, Any] = {
    "device": "h100_sxm",
    "model": "llama-3.1-8b",
    "engine": "vllm-0.24",
    "kv_cache": {"max_model_len": 4096},
    "workload": {
        "arrivals": {"kind": "poisson", "rate_per_s": 20},
        "input_tokens": 400,
        "output_tokens": 20,
        "requests": 20,
    },
}


def run(*sets: str) -> dict[str, Any]:
    return simulate(parse_scenario(SCENARIO, list(sets))).summary()


@pytest.mark.parametrize(
    ("leaf", "says"),
    [
        ("node.link=pigeon", ["node.link", "'pigeon'", "NVLink4"]),
        ("node.inter_node_link=pigeon", ["node.inter_node_link", "'pigeon'", "infiniband"]),
        ("quantization.activations=fp8", ["quantization.activations", "'fp8'", "quantization.weights"]),
        ("price.usd_per_gpu_hour=1e308", ["price.usd_per_gpu_hour", "1e308", "at most"]),
        ("workload.arrivals.rate_per_s=1e-12", ["workload.arrivals", "146 years"]),
        ("device={base: h100_sxm, hbm_bandwidth: x1e-12}", ["hbm_bandwidth", "at least"]),
        ("device={base: h100_sxm, n_sm: x1e-6}", ["n_sm", "above 0"]),
        ("device={base: h100_sxm, usable_bytes: x1e-12}", ["usable_memory", "above 0"]),
    ],
)
def test_a_leaf_that_nothing_follows_is_refused(leaf: str, says: list[str]) -> None:
    with pytest.raises(MemboundError) as caught:
        run(leaf)
    text = str(caught.value)
    assert "\n" not in text
    assert all(part in text for part in says), text


def test_a_group_larger_than_its_machine_waits_for_the_network() -> None:
    one, two, slow = (
        run("parallelism.tensor_parallel_size=2", *sets)["latency"]["tpot_s"]["mean"]
        for sets in ((), ("node.gpus=1",), ("node.gpus=1", "node.inter_node_link=1GB/s"))
    )
    assert one < two < slow


def test_dealing_out_the_experts_of_a_model_without_any_is_refused() -> None:
    with pytest.raises(MemboundError, match=r"expert_parallel: true, but llama-3\.1-8b has no experts"):
        run("parallelism.expert_parallel=true", "parallelism.tensor_parallel_size=2")


@pytest.mark.parametrize("link", ["nvlink", "NVLink4", "auto"])
def test_the_device_s_own_link_is_taken_by_its_names(link: str) -> None:
    assert run(f"node.link={link}")["latency"] == run()["latency"]


def test_the_spread_over_experts_counts() -> None:
    """More experts touched is more weights read: uniform choice is slower than a few favourites."""
    moe = ("model=qwen3-30b-a3b", "device=h200_sxm")
    uniform, real, skewed = (
        run(*moe, f"workload.expert_routing={routing}")["latency"]["tpot_s"]["mean"]
        for routing in ("{kind: uniform}", "{kind: zipf, s: 0.8}", "{kind: zipf, s: 2}")
    )
    assert skewed < real < uniform
    assert real == run(*moe)["latency"]["tpot_s"]["mean"]


@pytest.mark.parametrize(
    ("device", "model", "what"),
    [
        ("tpu_v6e", "gpt-oss-20b", "mixture-of-experts"),
        ("tpu_v5p", "deepseek-v2-lite", "latent attention"),
    ],
)
def test_a_tpu_is_refused_what_it_has_no_timing_form_for(device: str, model: str, what: str) -> None:
    with pytest.raises(MemboundError, match=what):
        run(f"device={device}", f"model={model}")


def test_sums_over_a_slow_run_do_not_overflow() -> None:
    """Half a million tokens held for a year of nanoseconds is beyond 64 bits."""
    found = run(
        "device={base: h100_sxm, hbm_bandwidth: x1e-6, hbm_capacity: 10TB}",
        "workload.arrivals.rate_per_s=1e6",
        "workload.requests=400",
        "workload.output_tokens=600",
        "scheduler.max_num_seqs=400",
    )
    assert found["requests"]["completed"] == 400
    assert 0 < found["kv"]["internal_fragmentation"] < 0.05
    assert 0 < found["kv"]["mean_usage"] <= found["kv"]["peak_usage"] <= 1


UNDER_PRESSURE: dict[str, Any] = {
    **SCENARIO,
    "kv_cache": {"max_model_len": 4096, "num_gpu_blocks_override": 300},
    "scheduler": {"max_num_batched_tokens": 512},
    "workload": {
        "arrivals": {"kind": "poisson", "rate_per_s": 100},
        "input_tokens": {"kind": "lognormal", "p50": 300, "sigma": 0.8, "min": 20, "max": 2000},
        "output_tokens": {"kind": "lognormal", "p50": 60, "sigma": 0.6, "min": 1, "max": 300},
        "requests": 60,
    },
}


def under_pressure(*sets: str) -> dict[str, Any]:
    return simulate(parse_scenario(UNDER_PRESSURE, list(sets))).summary()


@pytest.fixture(scope="module")
def plain() -> dict[str, Any]:
    return under_pressure()


@pytest.mark.parametrize(
    ("leaf", "changed"),
    [
        ("workload.sampling=top_p_top_k", ["latency"]),
        ("kernels.attention=naive", ["latency"]),
        ("quantization.weights=fp8", ["latency", "memory"]),
        ("quantization.kv_cache=fp8", ["latency", "memory"]),
        ("parallelism.tensor_parallel_size=2", ["latency", "memory"]),
        ("engine=vllm-0.12", ["latency", "memory"]),
        ("scheduler.name=static", ["latency", "limiter"]),
        ("scheduler.max_num_seqs=4", ["latency", "limiter"]),
        ("scheduler.max_num_batched_tokens=300", ["latency", "memory"]),
        ("scheduler.enable_chunked_prefill=false", ["latency", "requests"]),
        ("scheduler.long_prefill_token_threshold=64", ["latency"]),
        ("scheduler.scheduler_reserve_full_isl=false", ["latency", "requests"]),
        ("scheduler.watermark=0.5", ["latency", "requests"]),
        ("scheduler.async_scheduling=false", ["latency"]),
        ("scheduler.preemption_mode=swap", ["latency", "kv", "time_share"]),
        ("kv_cache.allocator=contiguous", ["latency", "kv"]),
        ("kv_cache.block_size=64", ["latency", "memory"]),
        ("kv_cache.enable_prefix_caching=false", ["latency"]),
        ("kv_cache.gpu_memory_utilization=0.5", ["memory"]),
        ("kv_cache.num_gpu_blocks_override=400", ["latency", "memory"]),
        ("price.usd_per_gpu_hour=1", ["cost"]),
        ("simulation.seed=3", ["latency"]),
    ],
)
def test_a_leaf_that_is_taken_changes_what_it_names(
    plain: dict[str, Any], leaf: str, changed: list[str]
) -> None:
    found = under_pressure(leaf)
    for section in changed:
        assert found[section] != plain[section], section
    assert found["requests"]["submitted"] == 60


def test_priorities_are_served_in_order(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    rows = [f"0,500,20,{9 - number}" for number in range(10)]
    trace.write_text("arrival_s,input_tokens,output_tokens,priority\n" + "\n".join(rows) + "\n")
    scenario = {**SCENARIO, "workload": {"trace": {"path": str(trace)}}}
    order = {}
    for policy in ("fcfs", "priority"):
        sets = [f"scheduler.scheduling_policy={policy}", "scheduler.max_num_seqs=1"]
        requests = simulate(parse_scenario(scenario, sets)).record.requests
        order[policy] = np.argsort(requests["first_token_ns"]).tolist()
    assert order == {"fcfs": list(range(10)), "priority": list(range(9, -1, -1))}


@pytest.mark.parametrize(("block_size", "second", "hit"), [
    (16, "[1, 2]", 992), (64, "[1, 2]", 960), (512, "[1, 2]", 512), (16, "[1, 3]", 512), (64, "[1, 3]", 512),
    (64, "[3, 2]", 0), (1024, "[1, 2]", 0),
])  # fmt: skip
def test_a_repeated_prompt_is_found_in_whole_blocks(
    tmp_path: Path, block_size: int, second: str, hit: int
) -> None:
    """Of prompts of 1000 tokens, 512 to an id, what agrees is found in whole blocks, and never the last token."""
    trace = tmp_path / "trace.jsonl"
    row = '"input_length": 1000, "output_length": 5, "hash_ids"'
    trace.write_text(f'{{"timestamp": 0, {row}: [1, 2]}}\n{{"timestamp": 1000, {row}: {second}}}\n')
    scenario = {**SCENARIO, "workload": {"trace": {"path": str(trace)}}}
    result = simulate(parse_scenario(scenario, [f"kv_cache.block_size={block_size}"]))
    assert result.record.requests["num_cached_tokens"].tolist() == [0, hit]
    assert result.summary()["kv"]["prefix_hit_rate"] == hit / 2000
    result = simulate(parse_scenario(scenario, ["kv_cache.enable_prefix_caching=false"]))
    assert result.record.requests["num_cached_tokens"].tolist() == [0, 0]


def test_windows_take_their_share_of_the_pool() -> None:
    """A request of 4000 tokens needs 250 blocks for the layers that see all of it, and more for the others."""
    lone = (
        "model=gemma-3-12b",
        "workload.input_tokens=3950",
        "workload.output_tokens=50",
        "workload.requests=1",
    )
    tight, wide = (run(*lone, f"kv_cache.num_gpu_blocks_override={blocks}") for blocks in (500, 2000))
    assert tight["requests"]["rejected_by_reason"] == {"request exceeds the KV pool": 1}
    assert wide["requests"]["completed"] == 1
    assert wide["kv"]["peak_usage"] > 500 / 2000


@pytest.mark.parametrize(
    ("sets", "says"),
    [
        (["scheduler.name=orka"], ["scheduler.name", "'orka'", "nearest: 'orca'"]),
        (
            ["scheduler.name=priority", "scheduler.options={ageing_s: 3}"],
            ["'ageing_s'", "nearest: 'aging_s'"],
        ),
        (
            ["scheduler.name=priority", "scheduler.options={aging_s: soon}"],
            ["scheduler.options.aging_s", "'soon'"],
        ),
        (["scheduler.name=orca", "scheduler.options={reserve: all}"], ["reserve", "max_model_len", "'all'"]),
        (["scheduler.name=vtc", "scheduler.options={watermark: 0.1}"], ["only as scheduler.watermark"]),
        (["scheduler.options={aging_s: 3}"], ["vllm_v1 has no options"]),
        (["scheduler.name=deadline"], ["deadline has no deadlines", "slo.classes"]),
    ],
)
def test_a_setting_that_a_policy_cannot_follow_is_refused(sets: list[str], says: list[str]) -> None:
    with pytest.raises(MemboundError) as caught:
        run(*sets)
    text = str(caught.value)
    assert "\n" not in text
    assert all(part in text for part in says), text


def test_a_setting_that_a_policy_has_no_use_for_is_named() -> None:
    warnings = run("scheduler.name=vllm_v0", "scheduler.watermark=0.1")["confidence"]["warnings"]
    assert "scheduler.watermark: vllm_v0 does not follow it" in warnings
    assert not any("does not follow" in text for text in run()["confidence"]["warnings"])


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("priority", {"aging_s": "10ms"}),
        ("sjf", {"predictor_error": 1.0}),
        ("srpt", {"predictor_error": 1.0}),
        ("srpt", {"preempt_until": 0.05}),
        ("orca", {"reserve": "max_tokens"}),
        ("vtc", {"output_weight": 9}),
    ],
)
def test_an_option_of_a_policy_changes_the_run(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    draws = np.random.default_rng(0).integers(20, 300, (60, 2)).tolist()
    rows = [f"{n / 100},{2 * prompt},{answer},{n % 3},{n % 2}" for n, (prompt, answer) in enumerate(draws)]
    trace.write_text("arrival_s,input_tokens,output_tokens,priority,tenant\n" + "\n".join(rows) + "\n")
    scenario = {**UNDER_PRESSURE, "workload": {"trace": {"path": str(trace)}},
                "scheduler": {"name": name, "max_num_seqs": 12, "max_num_batched_tokens": 1024}}  # fmt: skip
    plain, changed = (
        simulate(
            parse_scenario({**scenario, "scheduler": {**scenario["scheduler"], "options": given}}, [])
        ).summary()
        for given in ({}, options)
    )
    assert changed["requests"]["completed"] == 60
    assert changed["latency"] != plain["latency"]
    assert (
        f"scheduler {name}: as published, not held against the steps of a real engine"
        in changed["confidence"]["warnings"]
    )
