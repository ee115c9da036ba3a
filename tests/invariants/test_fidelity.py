"""`simulation.fidelity`: without others on the device a step by its kernels is the same step, to the nanosecond."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from membound.sim.run import simulate
from membound.sim.scenario import parse_scenario

MODELS = {"llama-3.1-8b": "h100_sxm", "qwen3-30b-a3b": "h200_sxm", "gemma-3-12b": "a100_sxm_80gb"}


@st.composite
def scenarios(draw: st.DrawFn) -> dict[str, Any]:
    """Small scenarios of all kinds: models, loads, ranks, limits, formats, schedulers, speculation."""
    model = draw(st.sampled_from(sorted(MODELS)))
    limits = draw(st.sampled_from([{}, {"max_num_batched_tokens": 512}, {"max_num_seqs": 4}]))
    arrivals = draw(
        st.sampled_from([{"kind": "poisson", "rate_per_s": 15}, {"kind": "closed_loop", "concurrency": 6}])
    )
    lengths = {"kind": "lognormal", "p50": draw(st.integers(20, 900)), "sigma": 0.7, "min": 4, "max": 3000}
    scenario: dict[str, Any] = {
        "device": MODELS[model],
        "model": model,
        "parallelism": {"tensor_parallel_size": draw(st.sampled_from([1, 2]))},
        "quantization": {"kv_cache": draw(st.sampled_from(["auto", "fp8"]))},
        "scheduler": {**limits, "async_scheduling": draw(st.booleans())},
        "kv_cache": {"max_model_len": 4096, "num_gpu_blocks_override": draw(st.sampled_from([300, 4000]))},
        "workload": {
            "arrivals": arrivals,
            "input_tokens": lengths,
            "output_tokens": {"kind": "uniform", "low": 1, "high": draw(st.integers(2, 60))},
            "requests": draw(st.integers(5, 25)),
        },
        "simulation": {"seed": draw(st.integers(0, 9))},
    }
    if model == "llama-3.1-8b" and draw(st.booleans()):
        scenario["speculative"] = {"method": "eagle", "num_speculative_tokens": 2, "acceptance": 0.7}
    if draw(st.booleans()):
        scenario["kv_cache"]["tiers"] = []
    return scenario


def result(scenario: dict[str, Any], fidelity: str) -> Any:
    return simulate(parse_scenario(scenario, [f"simulation.fidelity={fidelity}"]), keep_steps=True)


@settings(max_examples=20, deadline=None)
@given(scenarios())
def test_without_others_the_clock_is_the_same_to_the_nanosecond(scenario: dict[str, Any]) -> None:
    by_step, by_kernel = (result(scenario, fidelity) for fidelity in ("step", "kernel"))
    for table in ("requests", "steps", "per_request_causes"):
        first, second = getattr(by_step.record, table), getattr(by_kernel.record, table)
        assert {name: column.tolist() for name, column in first.items()} == {
            name: column.tolist() for name, column in second.items()
        }
    tables = [each.summary() for each in (by_step, by_kernel)]
    for summary in tables:
        assert summary["scenario"]["simulation"].pop("fidelity")
        assert "contention" not in summary
        del summary["simulation"]  # jumps: a step that is work on a device is not jumped over
    assert tables[0] == tables[1]


TWO: dict[str, Any] = {
    "device": "h200_sxm",
    "model": "llama-3.1-8b",
    "kv_cache": {"max_model_len": 4096},
    "workload": {
        "arrivals": {"kind": "closed_loop", "concurrency": 16},
        "input_tokens": 800,
        "output_tokens": 40,
        "requests": 32,
    },
    "colocated": {
        "model": "qwen3-8b",
        "kv_cache": {"max_model_len": 4096},
        "workload": {
            "arrivals": {"kind": "closed_loop", "concurrency": 4},
            "input_tokens": 1500,
            "output_tokens": 20,
            "requests": 12,
        },
    },
}


def test_beside_others_the_kernels_of_a_step_meet_them_one_by_one() -> None:
    """What a part of a step has on average its kernels have in turn: a slow-down of its own, near that of the parts."""
    coarse, fine = (result(TWO, fidelity).summary() for fidelity in ("step", "kernel"))
    for metric in ("tpot_s", "e2e_s"):
        first, second = (summary["latency"][metric]["mean"] for summary in (coarse, fine))
        assert first != second
        assert first == pytest.approx(second, rel=0.1)


def test_kv_transfers_beside_a_step_meet_its_kernels() -> None:
    scenario: dict[str, Any] = {
        "device": {"base": "h100_sxm", "pcie": "1.5TB/s"},
        "model": "llama-3.1-8b",
        "kv_cache": {
            "max_model_len": 8192,
            "num_gpu_blocks_override": 600,
            "tiers": [
                {"kind": "dram", "capacity": "40GiB", "read_bandwidth": "2TB/s", "write_bandwidth": "2TB/s"}
            ],
        },
        "workload": {
            "sessions": {"turns": 4, "think_time_s": 0.2},
            "arrivals": {"kind": "poisson", "rate_per_s": 8},
            "input_tokens": 900,
            "output_tokens": 30,
            "requests": 60,
        },
    }
    coarse, fine = (result(scenario, fidelity).summary() for fidelity in ("step", "kernel"))
    assert coarse["time_share"]["transfer"] > 0
    assert fine["time_share"]["transfer"] > 0
    assert coarse["time_share"]["transfer"] != fine["time_share"]["transfer"]
