"""A whole run, from scenario to summary, is the same with fast-forward as without, whatever the model and the load."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from membound.sim.output.result import SimulationResult
from membound.sim.policies import policy_names
from membound.sim.run import simulate
from membound.sim.scenario import parse_scenario

EXAMPLES = int(os.environ.get("MEMBOUND_EXAMPLES", "50"))
# Dense; windows; windows, sinks and experts; experts; latent attention; recurrent layers; ranks that communicate.
SETUPS: dict[str, dict[str, Any]] = {
    "qwen3-8b": {"device": "h100_sxm"},
    "gemma-3-12b": {"device": "h100_sxm"},
    "gpt-oss-20b": {"device": "h100_sxm"},
    "qwen3-30b-a3b": {"device": "h200_sxm"},
    "deepseek-v2-lite": {"device": "a100_sxm_80gb"},
    "qwen3-next-80b-a3b": {"device": "h200_sxm", "parallelism": {"tensor_parallel_size": 2}},
    "llama-3.1-70b": {"device": "h100_sxm", "parallelism": {"tensor_parallel_size": 4}},
}
LENGTHS = st.fixed_dictionaries({"kind": st.just("lognormal"), "p50": st.integers(1, 400), "sigma": st.just(0.9),
                                 "min": st.just(1), "max": st.just(3000)})  # fmt: skip
ANSWERS = st.fixed_dictionaries({"kind": st.just("lognormal"), "p50": st.integers(1, 60), "sigma": st.just(0.9),
                                 "min": st.just(1), "max": st.just(400)})  # fmt: skip
ARRIVALS = st.one_of(
    st.fixed_dictionaries({"kind": st.just("poisson"), "rate_per_s": st.floats(0.5, 60)}),
    st.fixed_dictionaries({"kind": st.just("gamma"), "rate_per_s": st.floats(0.5, 60), "cv": st.just(4.0)}),
    st.fixed_dictionaries({"kind": st.just("constant"), "rate_per_s": st.floats(0.5, 60)}),
    st.fixed_dictionaries({"kind": st.just("closed_loop"), "concurrency": st.integers(1, 20),
                           "think_time_s": st.sampled_from((0.0, 0.5))}),
)  # fmt: skip
SCHEDULERS = st.fixed_dictionaries(
    {
        "name": st.sampled_from(("vllm_v1", *policy_names("scheduler"))),
        "max_num_seqs": st.integers(1, 64),
        "max_num_batched_tokens": st.sampled_from((512, 2048, 8192)),
        "async_scheduling": st.booleans(),
    }
)
CACHES = st.fixed_dictionaries(
    {
        "allocator": st.sampled_from(("paged", *policy_names("kvcache"))),
        "num_gpu_blocks_override": st.sampled_from((None, 600, 2000)),
        "enable_prefix_caching": st.booleans(),
        "max_model_len": st.just(4096),
    }
)


def outcome(result: SimulationResult) -> dict[str, Any]:
    """Return everything that is said of a run, except how it was computed."""
    found = result.summary()
    assert found["simulation"].pop("jumps") >= 0
    assert found["simulation"].pop("events") > 0
    del found["scenario"]["simulation"]["fast_forward"]
    return found


@pytest.mark.parametrize("model", SETUPS)
@settings(max_examples=max(EXAMPLES // 16, 1), deadline=None, phases=(Phase.reuse, Phase.generate))
@given(data=st.data())
def test_summary_is_that_of_a_run_step_by_step(model: str, data: st.DataObject) -> None:
    scenario = {
        "model": model, "engine": "vllm-0.24", **SETUPS[model],
        "slo": {"classes": {"default": {"ttft_s": 1.0, "tpot_s": 0.1}}},
        "workload": {"requests": 30, "arrivals": data.draw(ARRIVALS), "input_tokens": data.draw(LENGTHS),
                     "output_tokens": data.draw(ANSWERS)},
        "scheduler": data.draw(SCHEDULERS), "kv_cache": data.draw(CACHES),
        "simulation": {"seed": data.draw(st.integers(0, 9))},
    }  # fmt: skip
    fast, plain = (
        simulate(parse_scenario(scenario, [f"simulation.fast_forward={value}"]))
        for value in ("true", "false")
    )
    assert plain.record.counts["jumps"] == 0
    assert fast.record.counts["events"] <= plain.record.counts["events"]
    for name, column in plain.record.requests.items():
        np.testing.assert_array_equal(fast.record.requests[name], column, err_msg=name)
    assert outcome(fast) == outcome(plain)


LEVERS = st.fixed_dictionaries(
    {
        "eviction": st.one_of(
            st.just(None),
            st.fixed_dictionaries({"kind": st.just("snapkv"), "budget": st.floats(0.01, 0.9)}),
            st.fixed_dictionaries({"kind": st.just("snapkv"), "max_capacity_prompt": st.integers(32, 600)}),
        ),
        "disable_cascade_attn": st.booleans(),
        "communication_overlap": st.sampled_from(("none", "dual_batch")),
        "enable_sp": st.booleans(),
        "shared": st.sampled_from((0, 300)),
    }
)


@settings(max_examples=max(EXAMPLES // 8, 1), deadline=None, phases=(Phase.reuse, Phase.generate))
@given(data=st.data())
def test_levers_of_kernels_and_groups_leave_jumps_exact(data: st.DataObject) -> None:
    """Evicted prompts, shared prefixes read once, half batches and scattered sums: the whole summary."""
    lever = data.draw(LEVERS)
    evicts, shared = lever["eviction"] is not None, lever["shared"]
    scenario = {
        "model": "llama-3.1-70b", "engine": "vllm-0.24", "device": "h100_sxm",
        "parallelism": {"tensor_parallel_size": 4, "communication_overlap": lever["communication_overlap"],
                        "enable_sp": lever["enable_sp"], **({"sp_min_token_num": 256} if lever["enable_sp"] else {})},
        "kernels": {"disable_cascade_attn": lever["disable_cascade_attn"]},
        "slo": {"classes": {"default": {"ttft_s": 1.0, "tpot_s": 0.1}}},
        "workload": {"requests": 40, "arrivals": data.draw(ARRIVALS), "input_tokens": data.draw(LENGTHS),
                     "output_tokens": data.draw(ANSWERS),
                     **({"sessions": {"system_prompt_tokens": shared}} if shared else {})},
        "scheduler": data.draw(SCHEDULERS),
        "kv_cache": data.draw(CACHES) | {"allocator": "paged", "eviction": lever["eviction"],
                                         "enable_prefix_caching": not evicts},
        "simulation": {"seed": data.draw(st.integers(0, 9))},
    }  # fmt: skip
    fast, plain = (
        simulate(parse_scenario(scenario, [f"simulation.fast_forward={value}"]))
        for value in ("true", "false")
    )
    for name, column in plain.record.requests.items():
        np.testing.assert_array_equal(fast.record.requests[name], column, err_msg=name)
    assert outcome(fast) == outcome(plain)
    assert fast.summary()["requests"]["submitted"] == 40
