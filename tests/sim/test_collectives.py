"""How a group's sums are asked for: half batches beside each other, sequence parallel, several machines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from membound.hwmodels.errors import MemboundError
from membound.sim.output.result import SimulationResult
from membound.sim.run import simulate
from membound.sim.scenario import Scenario, load_scenario, resolve

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def serve(overlap: str, **changes: Any) -> SimulationResult:
    return simulate(scenario(overlap, **changes))


def scenario(overlap: str, **changes: Any) -> Scenario:
    given = {
        "model": "llama-3.1-70b",
        "quantization__weights": "fp8",
        "workload__requests": 60,
        "parallelism__tensor_parallel_size": 8,
        "parallelism__communication_overlap": overlap,
    }
    return load_scenario(EXAMPLES / "demo-chat.yaml").replace(**given | changes)


def test_prompts_come_sooner_and_less_time_is_spent_on_communication_alone() -> None:
    none, cut = (serve(each).summary() for each in ("none", "dual_batch"))
    assert cut["latency"]["ttft_s"]["mean"] < none["latency"]["ttft_s"]["mean"]
    assert cut["time_share"]["communication"] < 0.8 * none["time_share"]["communication"]
    assert sum(cut["time_share"].values()) == pytest.approx(1.0, abs=1e-12)
    assert any(
        "communication_overlap is an unvalidated lever" in each for each in cut["confidence"]["warnings"]
    )


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"speculative": {"method": "ngram", "num_speculative_tokens": 3, "acceptance": 0.6}},
        {"parallelism__tensor_parallel_size": 4, "parallelism__pipeline_parallel_size": 2},
        {"model": "mixtral-8x7b", "parallelism__tensor_parallel_size": 4},
    ],
)
def test_jumps_change_nothing(changes: dict[str, Any]) -> None:
    one, other = (
        serve("dual_batch", simulation__fast_forward=each, **changes).record.requests
        for each in (True, False)
    )
    for name in ("first_token_ns", "last_token_ns"):
        assert (one[name] == other[name]).all()


def test_one_gpu_says_that_it_has_nothing_to_overlap() -> None:
    alone = {"model": "llama-3.1-8b", "parallelism__tensor_parallel_size": 1}
    one, other = (serve(each, **alone) for each in ("dual_batch", "none"))
    assert (one.record.requests["last_token_ns"] == other.record.requests["last_token_ns"]).all()
    assert any("it changes nothing" in each for each in one.summary()["confidence"]["warnings"])


SP = {"parallelism__enable_sp": True, "parallelism__sp_min_token_num": 256}
MACHINES = {"parallelism__tensor_parallel_size": 16, "node__gpus": 8}


def test_scattered_sums_bring_prompts_sooner() -> None:
    plain, cut = (serve("none", **each).summary() for each in ({}, SP))
    assert cut["latency"]["ttft_s"]["mean"] < plain["latency"]["ttft_s"]["mean"]
    assert any("enable_sp is an unvalidated lever" in each for each in cut["confidence"]["warnings"])


def test_a_group_over_machines_waits_for_the_network() -> None:
    one = serve("none", **MACHINES | {"node__gpus": 16}).summary()
    two = serve("none", **MACHINES).summary()
    slow = serve("none", **MACHINES, node__inter_node_link="ethernet").summary()
    tpots = [each["latency"]["tpot_s"]["mean"] for each in (one, two, slow)]
    assert tpots[0] < tpots[1] < tpots[2]
    assert slow["time_share"]["communication"] > two["time_share"]["communication"]
    assert any(
        "a group over machines of 8 GPUs is an unvalidated lever" in each
        for each in two["confidence"]["warnings"]
    )


@pytest.mark.parametrize("changes", [SP, MACHINES, SP | MACHINES])
def test_jumps_change_nothing_however_a_group_sums(changes: dict[str, Any]) -> None:
    one, other = (
        serve("dual_batch", simulation__fast_forward=each, **changes).record.requests
        for each in (True, False)
    )
    assert (one["last_token_ns"] == other["last_token_ns"]).all()


def test_where_vllm_leaves_it_off_nothing_changes_and_that_is_said() -> None:
    narrow = {"model": "llama-3.1-8b", "parallelism__tensor_parallel_size": 2}
    one, other = (serve("none", **narrow, parallelism__enable_sp=each) for each in (True, False))
    assert (one.record.requests["last_token_ns"] == other.record.requests["last_token_ns"]).all()
    assert any("leaves it off; give one" in each for each in one.summary()["confidence"]["warnings"])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"parallelism__sp_min_token_num": 256}, "sp_min_token_num: 256 without enable_sp"),
        (
            {"node__gpus": 3},
            "do not fit a machine of node.gpus 3, nor fill several; allowed: up to 3, or 6, 9",
        ),
        ({"node__gpus": 4, "parallelism__pipeline_parallel_size": 2}, "pipeline_parallel_size above 1"),
        (
            {"model": "mixtral-8x7b", "node__gpus": 4, "parallelism__expert_parallel": True},
            "experts dealt out over it",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(MemboundError, match=said) as caught:
        resolve(scenario("none", **changes))
    assert "\n" not in str(caught.value)
