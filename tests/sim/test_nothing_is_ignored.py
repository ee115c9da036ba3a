"""Every leaf of a scenario changes the run, or is refused in one line: none is taken and then forgotten."""

from __future__ import annotations

from typing import Any

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
        ("node.link=pcie", ["node.link", "'pcie'", "NVLink4"]),
        ("node.link=pigeon", ["node.link", "'pigeon'", "NVLink4"]),
        ("node.inter_node_link=infiniband", ["node.inter_node_link", "not built yet"]),
        ("simulation.warmup=5", ["simulation.warmup", "not built yet", "allowed: auto"]),
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


def test_a_group_larger_than_its_machine_is_refused() -> None:
    with pytest.raises(MemboundError, match=r"tensor_parallel_size: 2 GPUs .* node\.gpus 1"):
        run("node.gpus=1", "parallelism.tensor_parallel_size=2")


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
