"""Runs over pipeline stages, over PCIe and over machines: what they gain, where their time goes, what is refused."""

from __future__ import annotations

from functools import cache
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
        "arrivals": {"kind": "closed_loop", "concurrency": 96},
        "input_tokens": 700,
        "output_tokens": 40,
        "requests": 300,
    },
}
ALONE = "workload.arrivals={kind: closed_loop, concurrency: 1}"


@cache
def run(*sets: str) -> dict[str, Any]:
    return simulate(parse_scenario(SCENARIO, list(sets))).summary()


def over(pp: int, *sets: str) -> dict[str, Any]:
    return run(f"parallelism.pipeline_parallel_size={pp}", *sets)


def per_second(found: dict[str, Any]) -> float:
    return found["throughput"]["output_tokens_per_s"]


def test_under_load_stages_work_side_by_side() -> None:
    """Throughput grows with the stages, less than in proportion: the batches get smaller and the stages wait."""
    one, two, four = (per_second(over(pp)) for pp in (1, 2, 4))
    assert 1.4 < two / one < 2.0
    assert 1.2 < four / two < 2.0


def test_one_request_alone_gains_nothing_and_leaves_the_other_stages_idle() -> None:
    one, four = run(ALONE, "workload.requests=5"), over(4, ALONE, "workload.requests=5")
    assert 1.0 < four["latency"]["tpot_s"]["mean"] / one["latency"]["tpot_s"]["mean"] < 1.12
    shares = four["time_share"]
    assert shares["bubble"] / (1 - shares["idle"]) == pytest.approx(0.75, abs=0.01)


@pytest.mark.parametrize("pp", [2, 3, 4])
def test_all_of_the_time_is_charged_bubbles_included(pp: int) -> None:
    found = over(pp)
    assert sum(found["time_share"].values()) == pytest.approx(1.0, abs=1e-12)
    assert found["time_share"]["bubble"] > 0
    assert found["requests"]["completed"] == 300
    assert found["simulation"]["events"] == found["simulation"]["steps"]
    assert 0 < found["utilization"]["mfu"] < run()["utilization"]["mfu"]
    assert any("pipeline_parallel_size is an unvalidated lever" in w for w in found["confidence"]["warnings"])


def test_kv_is_kept_by_the_stage_that_computed_it() -> None:
    """Each stage holds its layers' share: more than twice the tokens of one GPU, which holds all weights."""
    one, two = (found["memory"]["kv_capacity_tokens"] for found in (run(), over(2)))
    assert two > 2 * one


def test_short_of_blocks_a_pipeline_still_serves_everybody() -> None:
    found = over(
        3, "kv_cache.num_gpu_blocks_override=400", "workload.output_tokens=200", "workload.requests=100"
    )
    assert found["requests"]["completed"] == 100
    assert found["requests"]["preemptions"] > 0
    assert found["throughput"]["output_tokens_per_s"] > 0


def test_over_pcie_tensor_parallelism_makes_prefill_slower_and_a_pipeline_does_not() -> None:
    """All-reduces carry every token's activations twice a layer; a pipeline sends them on once a stage."""
    prompts = ("workload.input_tokens=3000", "workload.output_tokens=1", "workload.requests=60")
    one = run(*prompts)["throughput"]["input_tokens_per_s"]
    tp, pp, nvlink = (
        run(*prompts, *sets)["throughput"]["input_tokens_per_s"]
        for sets in (
            ("parallelism.tensor_parallel_size=4", "node.link=pcie"),
            ("parallelism.pipeline_parallel_size=4", "node.link=pcie"),
            ("parallelism.tensor_parallel_size=4",),
        )
    )
    assert tp < one < nvlink
    assert one < pp


def test_stages_in_different_machines_are_joined_by_the_network() -> None:
    near, far, slow = (
        over(2, ALONE, "workload.requests=5", *sets)["latency"]["tpot_s"]["mean"]
        for sets in ((), ("node.gpus=1",), ("node.gpus=1", "node.inter_node_link=ethernet"))
    )
    assert near < slow
    assert far < slow
    assert over(2, ALONE, "workload.requests=5", "node.gpus=2")["latency"]["tpot_s"]["mean"] == near


@pytest.mark.parametrize(
    ("sets", "says"),
    [
        (("scheduler.async_scheduling=true",), ["scheduler.async_scheduling: true", "allowed: auto, false"]),
        (
            ("speculative={method: ngram, num_speculative_tokens: 2, acceptance: 0.5}",),
            ["speculative: ", "null"],
        ),
        (("kv_cache.tiers=[{kind: dram, capacity: 10GiB}]",), ["kv_cache.tiers: ", "allowed: []"]),
        (("scheduler.preemption_mode=swap",), ["scheduler.preemption_mode: 'swap'", "allowed: recompute"]),
        (("scheduler.name=static",), ["scheduler.name: 'static'", "vllm_v1"]),
        (("parallelism.pipeline_parallel_size=33",), ["pipeline_parallel_size is 33", "1 to 32"]),
    ],
)
def test_what_no_pipeline_does_is_refused_in_one_line(sets: tuple[str, ...], says: list[str]) -> None:
    with pytest.raises(MemboundError) as caught:
        over(2, *sets)
    text = str(caught.value)
    assert "\n" not in text
    assert all(part in text for part in says), text


def test_a_group_that_fills_no_number_of_machines_is_refused() -> None:
    with pytest.raises(
        MemboundError, match=r"tensor_parallel_size: 4 GPUs do not fit .* node\.gpus 3, nor fill"
    ):
        run("parallelism.tensor_parallel_size=4", "node.gpus=3")
