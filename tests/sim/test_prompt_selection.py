"""``kv_cache.eviction: {kind: snapkv}``: a budget of every prompt's entries, chosen once, when its prefill ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from membound.hwmodels.errors import MemboundError
from membound.hwmodels.pipeline import PipelineStepModel
from membound.hwmodels.stepmodel import StepModel
from membound.sim.books.record import RunRecord
from membound.sim.policies import policy_names
from membound.sim.run import simulate, step_model
from membound.sim.scenario import Scenario, load_scenario, resolve

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
QUARTER = {"kind": "snapkv", "budget": 0.25}


def chat(**changes: Any) -> Scenario:
    base = load_scenario(EXAMPLES / "demo-chat.yaml").replace(
        workload__requests=40, workload__arrivals__rate_per_s=30.0, kv_cache__enable_prefix_caching=False
    )
    return base.replace(**changes)


def alone(prompt: int, answer: int, **changes: Any) -> RunRecord:
    """Serve one request."""
    fixed = {
        "workload__requests": 1,
        "workload__input_tokens": {"kind": "fixed", "value": prompt},
        "workload__output_tokens": {"kind": "fixed", "value": answer},
    }
    return simulate(chat(**fixed, **changes)).record


def span_ns(record: RunRecord, since: str, until: str) -> int:
    return int(record.requests[until][0] - record.requests[since][0])


def same_times(one: RunRecord, other: RunRecord) -> bool:
    return all(
        (one.requests[name] == other.requests[name]).all() for name in ("first_token_ns", "last_token_ns")
    )


@pytest.mark.parametrize("prompt", [100, 4000, 12345])
def test_decode_reads_what_is_kept_and_the_answer(prompt: int) -> None:
    """To the nanosecond the time between tokens of a prompt as long as what is kept."""
    kept = alone(prompt, 200, kv_cache__eviction={"kind": "snapkv", "max_capacity_prompt": 96})
    short = alone(96, 200)
    spans = [span_ns(each, "first_token_ns", "last_token_ns") for each in (kept, short)]
    assert spans[0] == spans[1]


@pytest.mark.parametrize("prompt", [2000, 8192, 8193, 20000])
def test_the_choice_costs_one_pass_over_the_prompts_keys_when_it_ends(prompt: int) -> None:
    """In chunks or not, and with a last chunk of one token, which counts as a decode."""
    scenario = chat(kv_cache__eviction=QUARTER)
    model = step_model(resolve(scenario))
    assert isinstance(model, StepModel)
    assert model.selection is not None
    first = [alone(prompt, 10, kv_cache__eviction=each) for each in (QUARTER, None)]
    cost = model.selection.time(prompt, -(-prompt // 4)).seconds
    plain, chosen = (span_ns(each, "first_scheduled_ns", "first_token_ns") for each in reversed(first))
    assert chosen - plain == pytest.approx(cost * 1e9, abs=2)
    assert 0 < chosen - plain < 0.25 * plain


def test_the_choice_grows_with_prompt_window_and_what_is_kept() -> None:
    narrow, wide = (
        step_model(resolve(chat(kv_cache__eviction=QUARTER | {"window": window}))) for window in (32, 256)
    )
    assert isinstance(narrow, StepModel)
    assert isinstance(wide, StepModel)
    assert narrow.selection is not None
    assert wide.selection is not None
    base = narrow.selection.time(8000, 2000).seconds
    assert narrow.selection.time(16000, 2000).seconds > base
    assert narrow.selection.time(8000, 4000).seconds > base
    assert wide.selection.time(8000, 2000).seconds > base


@pytest.mark.parametrize("fidelity", ["step", "kernel"])
def test_a_step_with_a_choice_is_its_phases_and_its_causes(fidelity: str) -> None:
    scenario = chat(kv_cache__eviction=QUARTER, simulation__fidelity=fidelity)
    model = step_model(resolve(scenario))
    assert isinstance(model, StepModel)
    counts = (3, 3000, 1500, [(2000, 500)], 4, None)
    phases = model.phases(*counts, (2500, 625))
    assert "selection" in {phase.name for phase in phases}
    assert sum(phase.seconds for phase in phases) * 1e9 == pytest.approx(
        model.step_ns(*counts, (2500, 625)), abs=1
    )
    result = simulate(scenario)
    assert sum(result.summary()["time_share"].values()) == pytest.approx(1)


@pytest.mark.parametrize("scheduler", policy_names("scheduler"))
def test_jumps_change_nothing_under_any_scheduler(scheduler: str) -> None:
    """With a pool that is short of blocks, so that requests are preempted and their prompts chosen from again."""
    scenario = chat(
        kv_cache__eviction=QUARTER,
        kv_cache__num_gpu_blocks_override=600,
        kv_cache__max_model_len=9000,
        scheduler__name=scheduler,
    )
    assert same_times(record(scenario), record(scenario.replace(simulation__fast_forward=False)))


def record(scenario: Scenario) -> RunRecord:
    return simulate(scenario).record


@settings(max_examples=15, deadline=None)
@given(
    budget=st.floats(0.01, 0.99),
    blocks=st.integers(600, 3000),
    tokens=st.integers(64, 4096),
    asynchronous=st.booleans(),
)
def test_jumps_change_nothing_and_all_are_served(
    budget: float, blocks: int, tokens: int, asynchronous: bool
) -> None:
    scenario = chat(
        workload__requests=20,
        kv_cache__eviction={"kind": "snapkv", "budget": budget},
        kv_cache__num_gpu_blocks_override=blocks,
        kv_cache__max_model_len=9000,
        scheduler__max_num_batched_tokens=tokens,
        scheduler__async_scheduling=asynchronous,
    )
    found = simulate(scenario)
    assert same_times(found.record, record(scenario.replace(simulation__fast_forward=False)))
    summary = found.summary()
    assert summary["requests"]["completed"] == summary["requests"]["submitted"]
    assert summary["kv"]["peak_usage"] <= 1


def test_freed_blocks_serve_others() -> None:
    tight: dict[str, Any] = {"kv_cache__kv_cache_memory_bytes": 2 << 30, "workload__requests": 100}
    plain, kept = (
        simulate(chat(kv_cache__eviction=each, **tight)).summary()
        for each in (None, {"kind": "snapkv", "max_capacity_prompt": 256})
    )
    assert kept["memory"]["kv_capacity_tokens"] == plain["memory"]["kv_capacity_tokens"]
    assert kept["throughput"]["requests_per_s"] > 1.05 * plain["throughput"]["requests_per_s"]
    assert kept["kv"]["internal_fragmentation"] < 0.05


def test_prompts_within_the_budget_lose_nothing() -> None:
    roomy = {"kind": "snapkv", "max_capacity_prompt": 9000}
    assert same_times(record(chat(kv_cache__eviction=roomy)), record(chat()))


def test_stages_of_a_pipeline_choose_in_their_own_layers() -> None:
    parallel = {"parallelism__pipeline_parallel_size": 2}
    staged = step_model(resolve(chat(kv_cache__eviction=QUARTER, **parallel)))
    whole = step_model(resolve(chat(kv_cache__eviction=QUARTER)))
    assert isinstance(staged, PipelineStepModel)
    assert isinstance(whole, StepModel)
    assert whole.selection is not None
    parts = [stage.selection for stage in staged.stages]
    seconds = sum(float(part.time(4000, 1000).seconds) for part in parts if part is not None)
    assert seconds == pytest.approx(float(whole.selection.time(4000, 1000).seconds))
    spans = [
        alone(4000, 50, kv_cache__eviction=each, **parallel)
        for each in ({"kind": "snapkv", "max_capacity_prompt": 96}, None)
    ]
    decode = [span_ns(each, "first_token_ns", "last_token_ns") for each in spans]
    assert decode[0] < decode[1]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"kv_cache__enable_prefix_caching": True}, "which leaves no prefixes"),
        ({"kv_cache__allocator": "contiguous"}, r"kv_cache\.allocator: 'contiguous' takes nothing back"),
        ({"kv_cache__allocator": "radix"}, "allowed with eviction snapkv: paged"),
        ({"scheduler__preemption_mode": "swap"}, "allowed: recompute"),
        ({"model": "deepseek-v3"}, "keeps latents or windows"),
        ({"model": "gemma-3-27b"}, "keeps latents or windows"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(MemboundError, match=said) as caught:
        resolve(chat(kv_cache__eviction=QUARTER, **changes))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("eviction", "said"),
    [
        ({"kind": "snapkv"}, "needs budget"),
        ({"kind": "snapkv", "budget": 0.5, "max_capacity_prompt": 100}, "exclude each other"),
        ({"kind": "snapkv", "max_capacity_prompt": 16}, "below window 32"),
        ({"kind": "snapkv", "budget": 0.5, "sinks": 4}, "takes no sinks"),
        ({"kind": "h2o", "max_capacity_prompt": 100}, "takes no max_capacity_prompt"),
    ],
)
def test_a_budget_is_a_share_or_a_number_of_entries(eviction: dict[str, Any], said: str) -> None:
    with pytest.raises(MemboundError, match=said):
        chat(kv_cache__eviction=eviction)
