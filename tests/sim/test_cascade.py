"""``kernels.disable_cascade_attn: false``: blocks that all running requests hold are read once a step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from membound.hwmodels.errors import MemboundError
from membound.sim.output.result import SimulationResult
from membound.sim.run import simulate
from membound.sim.scenario import Scenario, load_scenario, resolve

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def scenario(disabled: Any = False, **changes: Any) -> Scenario:
    """Agents with one system prompt of 8,192 tokens."""
    given = {
        "workload__sessions__groups": 1,
        "workload__sessions__system_prompt_tokens": 8192,
        "workload__requests": 120,
        "workload__arrivals__rate_per_s": 12.0,
        "kv_cache__max_model_len": 16384,
        "kv_cache__kv_cache_memory_bytes": 16 << 30,
        "kernels__disable_cascade_attn": disabled,
    }
    return load_scenario(EXAMPLES / "levers-kv" / "3-paged-prefix.yaml").replace(**given | changes)


def serve(disabled: Any = False, **changes: Any) -> SimulationResult:
    return simulate(scenario(disabled, **changes))


def same_times(one: SimulationResult, other: SimulationResult) -> bool:
    names = ("first_token_ns", "last_token_ns")
    return all((one.record.requests[name] == other.record.requests[name]).all() for name in names)


def taken(found: SimulationResult) -> int:
    (said,) = [each for each in found.summary()["confidence"]["warnings"] if "was taken in" in each]
    return int(said.split()[5].replace(",", ""))


def test_one_prefix_of_all_is_read_once_and_tokens_come_sooner() -> None:
    each, once = serve(disabled=True).summary(), serve().summary()
    assert once["latency"]["tpot_s"]["mean"] < 0.85 * each["latency"]["tpot_s"]["mean"]
    assert once["time_share"]["hbm_kv"] < 0.7 * each["time_share"]["hbm_kv"]
    assert sum(once["time_share"].values()) == pytest.approx(1.0, abs=1e-12)
    assert any("unvalidated lever" in said for said in once["confidence"]["warnings"])


def test_two_prefixes_are_no_prefix_of_all() -> None:
    """VLLM looks for blocks that every running request holds; a second group of agents leaves it none."""
    two = {"workload__sessions__groups": 2}
    found = serve(**two)
    assert taken(found) < 0.1 * taken(serve())
    assert found.summary()["latency"]["tpot_s"]["mean"] == pytest.approx(
        serve(disabled=True, **two).summary()["latency"]["tpot_s"]["mean"], rel=0.02
    )


@pytest.mark.parametrize(
    "scheduler", ["vllm_v1", "vllm_v0", "sarathi", "orca", "static", "srpt", "priority", "vtc"]
)
@pytest.mark.parametrize("asynchronous", [False, True])
def test_jumps_change_nothing(scheduler: str, asynchronous: bool) -> None:
    changes = {"scheduler__name": scheduler, "scheduler__async_scheduling": asynchronous}
    assert same_times(serve(**changes), serve(simulation__fast_forward=False, **changes))


def test_auto_is_as_if_it_were_disabled() -> None:
    assert same_times(serve("auto"), serve(disabled=True))


def test_where_vllm_never_takes_it_nothing_changes_and_that_is_said() -> None:
    for changes, said in (
        ({"kv_cache__enable_prefix_caching": False}, "without prefix caching no blocks are shared"),
        ({"model": "gemma-3-12b"}, "so vLLM never takes it"),
    ):
        found = serve(workload__requests=40, **changes)
        assert same_times(found, serve(disabled=True, workload__requests=40, **changes))
        assert any(said in each for each in found.summary()["confidence"]["warnings"])


@pytest.mark.parametrize(
    ("changes", "leaf"),
    [
        ({"engine": "sglang-0.5.6"}, "engine"),
        ({"kernels__attention": "naive"}, "kernels.attention"),
        ({"kv_cache__allocator": "radix"}, "kv_cache.allocator"),
        ({"speculative": {"method": "ngram", "num_speculative_tokens": 3, "acceptance": 0.6}}, "speculative"),
        ({"parallelism__pipeline_parallel_size": 2}, "parallelism.pipeline_parallel_size"),
        ({"compute_split": {"prefill": 0.5, "decode": 0.5}}, "compute_split"),
    ],
)
def test_what_is_not_built_is_refused_in_one_line(changes: dict[str, Any], leaf: str) -> None:
    with pytest.raises(
        MemboundError, match=f"disable_cascade_attn: false is not built for what {leaf} says"
    ) as caught:
        resolve(scenario(**changes))
    assert "\n" not in str(caught.value)
