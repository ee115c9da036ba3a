"""A second model on the same device: what both get of it, and what is refused."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from membound.hwmodels.errors import MemboundError
from membound.sim.run import simulate
from membound.sim.scenario import parse_scenario

GIB = 1 << 30


def load(concurrency: int, tokens: int, output: int, requests: int) -> dict[str, Any]:
    return {
        "arrivals": {"kind": "closed_loop", "concurrency": concurrency},
        "input_tokens": tokens,
        "output_tokens": output,
        "requests": requests,
    }


TWO: dict[str, Any] = {
    "device": "h200_sxm",
    "model": "llama-3.1-8b",
    "kv_cache": {"max_model_len": 4096},
    "workload": load(16, 800, 40, 32),
    "colocated": {
        "model": "qwen3-14b",
        "kv_cache": {"max_model_len": 4096},
        "workload": load(4, 1500, 20, 12),
    },
}


def run(*sets: str, scenario: dict[str, Any] = TWO) -> Any:
    return simulate(parse_scenario(copy.deepcopy(scenario), list(sets)))


def alone(which: str) -> dict[str, Any]:
    """The scenario of one of the models with the device to itself, at the share of its memory that it has beside."""
    first = {key: value for key, value in TWO.items() if key != "colocated"}
    own = first if which == "first" else first | TWO["colocated"]
    return own | {"kv_cache": {"max_model_len": 4096, "gpu_memory_utilization": 0.46}}


@pytest.fixture(scope="module")
def together() -> dict[str, Any]:
    return run().summary()


@pytest.fixture(scope="module")
def each() -> list[dict[str, Any]]:
    return [run(scenario=alone(which)).summary() for which in ("first", "second")]


def test_both_models_serve_their_own_load_and_neither_is_faster_than_alone(
    together: dict[str, Any], each: list[dict[str, Any]]
) -> None:
    for beside, single in zip((together, together["colocated"]), each, strict=True):
        assert beside["requests"] == single["requests"]
        for metric in ("ttft_s", "tpot_s", "e2e_s"):
            assert beside["latency"][metric]["mean"] >= single["latency"][metric]["mean"]
        assert beside["contention"]["slowdown"] > 1.1
    assert together["colocated"]["model"] == "qwen3-14b"


def test_both_together_are_never_slower_than_one_after_the_other() -> None:
    both = run().record
    ends = [both.end_ns, round(both.beside["colocated"]["throughput"]["duration_s"] * 1e9)]
    serial = sum(run(scenario=alone(which)).record.end_ns for which in ("first", "second"))
    assert max(ends) <= serial


@settings(max_examples=8, deadline=None)
@given(
    st.integers(1, 12), st.integers(16, 2000), st.integers(1, 30), st.integers(1, 12), st.integers(16, 2000)
)
def test_no_resource_is_used_more_than_there_is(a: int, b: int, c: int, d: int, e: int) -> None:
    scenario = copy.deepcopy(TWO)
    scenario["workload"] = load(a, b, c, 12)
    scenario["colocated"]["workload"] = load(d, e, 10, 10)
    found = run(scenario=scenario).summary()
    for name in ("gpu_util", "sm_active", "tensor_active", "dram_active"):
        assert 0 < found["utilization"][name] <= 1 + 1e-6, name
        assert found["utilization"][name] == found["colocated"]["utilization"][name]
    for part in (found, found["colocated"]):
        assert sum(part["time_share"].values()) == pytest.approx(1.0, abs=1e-9)
        assert part["contention"]["slowdown"] >= 1
        assert 0 <= sum(part["contention"]["waited_share"].values()) < 1


def test_what_steps_wait_for_grows_the_causes_of_that_resource(
    together: dict[str, Any], each: list[dict[str, Any]]
) -> None:
    """Both read weights and compute; latency inside kernels and host work are not waited for."""

    def busy(summary: dict[str, Any], *causes: str) -> float:
        span = summary["throughput"]["duration_s"]
        return sum(summary["time_share"][cause] for cause in causes) * span

    memory = ("hbm_weights", "hbm_kv", "hbm_activations")
    assert busy(together, *memory) > busy(each[0], *memory) * 1.1
    assert busy(together, "compute") > busy(each[0], "compute") * 1.05
    for untouched in ("latency", "host"):
        assert busy(together, untouched) == pytest.approx(busy(each[0], untouched), rel=0.05)


def test_the_run_is_labelled_unvalidated(together: dict[str, Any]) -> None:
    assert any(
        text.startswith("colocated is an unvalidated lever") for text in together["confidence"]["warnings"]
    )


def test_what_is_refused_says_nothing_of_a_run_without_a_second_model() -> None:
    assert "colocated" not in run("colocated=null").summary()
    assert "contention" not in run("colocated=null").summary()


def test_the_two_loads_are_drawn_apart() -> None:
    scenario = copy.deepcopy(TWO)
    poisson = {
        "arrivals": {"kind": "poisson", "rate_per_s": 30}, "input_tokens": 100, "output_tokens": 2, "requests": 20,
    }  # fmt: skip
    scenario["workload"] = poisson
    scenario["colocated"] |= {"workload": poisson, "model": "llama-3.1-8b"}
    found = run(scenario=scenario).summary()
    assert found["throughput"]["duration_s"] != found["colocated"]["throughput"]["duration_s"]


@pytest.mark.parametrize(("first", "second", "shares"), [
    ("auto", "auto", (0.46, 0.46)), ("0.6", "auto", (0.6, 0.32)), ("auto", "0.3", (0.62, 0.3)),
    ("0.5", "0.45", (0.5, 0.45)),
])  # fmt: skip
def test_each_model_has_its_share_of_the_memory(first: str, second: str, shares: tuple[float, float]) -> None:
    found = run(
        f"kv_cache.gpu_memory_utilization={first}", f"colocated.kv_cache.gpu_memory_utilization={second}",
        "workload.requests=2", "colocated.workload.requests=2", "engine=vllm-0.24",
    ).summary()  # fmt: skip
    budgets = [part["memory"]["budget_bytes"] for part in (found, found["colocated"])]
    for budget, share in zip(budgets, shares, strict=True):
        assert budget / found["memory"]["total_bytes"] == pytest.approx(share, abs=0.001)


@pytest.mark.parametrize(
    ("sets", "says"),
    [
        (["colocated.model=qwen3-41b"], ["colocated: ", "qwen3-41b", "nearest"]),
        (["colocated.workload=null"], ["colocated: workload: missing"]),
        (["colocated.tokens=3"], ["colocated", "tokens"]),
        (["colocated.device=a100"], ["colocated", "device"]),
        (
            ["kv_cache.gpu_memory_utilization=0.7", "colocated.kv_cache.gpu_memory_utilization=0.5"],
            ["colocated.kv_cache.gpu_memory_utilization", "0.5", "0.7", "1.20", "together at most 1"],
        ),
        (
            ["kv_cache.gpu_memory_utilization=0.9"],
            ["colocated.kv_cache.gpu_memory_utilization", "auto leaves", "at least 0.05"],
        ),
        (
            ["kv_cache.num_gpu_blocks_override=70000"],
            ["both models need", "weights", "activations", "kv 136", "qwen3-14b", "allowed: lower"],
        ),
        (["kv_cache.tiers=[{kind: dram}]"], ["kv_cache: tiers and swap", "not built yet"]),
        (
            ["colocated.scheduler.preemption_mode=swap"],
            ["colocated.kv_cache: tiers and swap", "not built yet"],
        ),
        (["compute_split={prefill: 0.5, decode: 0.5}"], ["compute_split", "not built yet"]),
        (["cluster.replicas=2"], ["cluster", "not built yet"]),
        (["colocated.model=llama-3.1-70b"], ["colocated: ", "GiB"]),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(sets: list[str], says: list[str]) -> None:
    with pytest.raises(MemboundError) as caught:
        run(*sets)
    text = str(caught.value)
    assert "\n" not in text
    assert all(part in text for part in says), text
