"""``parallelism.communication_overlap``: one half of a batch sends while the other computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from membound.sim.output.result import SimulationResult
from membound.sim.run import simulate
from membound.sim.scenario import Scenario, load_scenario

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
