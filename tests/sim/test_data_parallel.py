"""Runs over data-parallel copies: engines of their own that meet in the experts; of a dense model, plain replicas."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from membound.hwmodels.errors import MemboundError
from membound.sim.run import simulate
from membound.sim.scenario import parse_scenario

SCENARIO: dict[str, Any] = {
    "device": "h200_sxm",
    "model": "qwen3-30b-a3b",
    "engine": "vllm-0.24",
    "kv_cache": {"max_model_len": 4096},
    "workload": {
        "arrivals": {"kind": "closed_loop", "concurrency": 64},
        "input_tokens": 500,
        "output_tokens": 30,
        "requests": 160,
    },
}
DENSE = "model=llama-3.1-8b"


@cache
def run(*sets: str) -> dict[str, Any]:
    return simulate(parse_scenario(SCENARIO, list(sets))).summary()


def test_copies_of_a_dense_model_are_replicas() -> None:
    copies, replicas = run(DENSE, "parallelism.data_parallel_size=2"), run(DENSE, "cluster.replicas=2")
    for known in ("latency", "throughput", "time_share", "requests", "cost"):
        assert copies[known] == replicas[known]


def test_copies_that_share_experts_serve_more_and_say_what_was_never_measured() -> None:
    one, four = run(), run("parallelism.data_parallel_size=4", "parallelism.expert_parallel=true")
    assert four["requests"]["completed"] == 160
    rate = "output_tokens_per_s"
    assert 1.3 < four["throughput"][rate] / one["throughput"][rate] < 4
    assert four["time_share"]["communication"] > 0 == one["time_share"]["communication"]
    assert sum(four["time_share"].values()) == pytest.approx(1.0)
    assert four["throughput"]["output_tokens_per_s_per_gpu"] == pytest.approx(four["throughput"][rate] / 4)
    said = four["confidence"]["warnings"]
    assert any("data_parallel_size is an unvalidated lever" in line for line in said)


def test_each_copy_has_kv_memory_of_its_own() -> None:
    """The experts' weights are shared, so each of four has more room than one GPU that holds them all."""
    one, four = (
        run(*sets)["memory"]
        for sets in ((), ("parallelism.data_parallel_size=4", "parallelism.expert_parallel=true"))
    )
    assert four["kv_capacity_tokens"] > one["kv_capacity_tokens"]
    assert four["weights_bytes"] < 0.5 * one["weights_bytes"]


@pytest.mark.parametrize(
    ("sets", "says"),
    [
        (("parallelism.data_parallel_size=16",), ["data_parallel_size: 16 GPUs", "node.gpus 8"]),
        (
            ("parallelism.data_parallel_size=2", "parallelism.pipeline_parallel_size=2"),
            ["pipeline_parallel_size", "share experts", "allowed: 1"],
        ),
        (
            ("parallelism.data_parallel_size=2", "compute_split={prefill: 0.5, decode: 0.5}"),
            ["parallelism.data_parallel_size", "compute_split", "allowed: 1"],
        ),
        (
            (
                "parallelism.data_parallel_size=2",
                "colocated={model: llama-3.2-1b}",
            ),
            ["data_parallel_size", "colocated"],
        ),
    ],
)
def test_copies_that_cannot_meet_are_refused_in_one_line(sets: tuple[str, ...], says: list[str]) -> None:
    with pytest.raises(MemboundError) as caught:
        run(*sets)
    text = str(caught.value)
    assert "\n" not in text
    assert all(part in text for part in says), text
