"""Runs of a study take over what earlier ones have worked out of their step model, where it is the same."""

from __future__ import annotations

from typing import Any

import pytest
from membound.sim.building import kept_step_model
from membound.sim.run import simulate
from membound.sim.scenario import Scenario, resolve

LOAD: dict[str, Any] = {
    "arrivals": {"kind": "poisson", "rate_per_s": 4}, "input_tokens": 300, "output_tokens": 20, "requests": 30,
}  # fmt: skip


def scenario(**changes: Any) -> Scenario:
    base = Scenario(device="h100_sxm", model="llama-3.1-8b", workload=LOAD)
    return base.replace(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"workload__arrivals__rate_per_s": 9},
        {"scheduler__max_num_seqs": 7},
        {"kv_cache__max_model_len": 4096},
        {"simulation__seed": 3},
        {"slo": {"classes": {"default": {"ttft_s": 1.0}}}},
    ],
)
def test_a_step_model_is_kept_through_what_it_does_not_depend_on(changes: dict[str, Any]) -> None:
    assert kept_step_model(resolve(scenario(**changes))) is kept_step_model(resolve(scenario()))


@pytest.mark.parametrize(
    "changes",
    [
        {"device": "a100_sxm_80gb"},
        {"device": {"base": "h100_sxm", "hbm_bandwidth": "x1.5"}},
        {"model": "qwen3-8b"},
        {"parallelism__tensor_parallel_size": 2},
        {"quantization__weights": "fp8"},
        {"quantization__kv_cache": "fp8"},
        {"kernels__attention": "naive"},
        {"workload__sampling": "top_p_top_k"},
        {"simulation__fidelity": "kernel"},
    ],
)
def test_a_step_model_of_something_else_is_another(changes: dict[str, Any]) -> None:
    assert kept_step_model(resolve(scenario(**changes))) is not kept_step_model(resolve(scenario()))


def test_a_run_after_others_is_as_it_would_be_alone() -> None:
    alone = simulate(scenario()).summary()
    for rate in (2, 40):
        simulate(scenario(workload__arrivals__rate_per_s=rate))
    assert simulate(scenario()).summary() == alone


def test_what_a_run_says_of_its_lanes_holds_nothing_of_a_run_before() -> None:
    alone = simulate(scenario()).summary()["confidence"]
    simulate(
        scenario(cluster={"pools": {"prefill": {"replicas": 1}, "decode": {"replicas": 1}}})
    )  # asks for the link's lane too
    assert simulate(scenario()).summary()["confidence"] == alone
