"""examples/levers-kv and the levers behind it: what is kept of a sequence, in how many bytes, in which layers."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from membound.hwmodels.errors import MemboundError
from membound.sim.books.record import RunRecord
from membound.sim.run import make_allocator, simulate, size_pool, step_model
from membound.sim.scenario import Scenario, load_scenario, resolve

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
FILES = {path.stem[2:]: path for path in sorted((EXAMPLES / "levers-kv").glob("*.yaml"))}


@cache
def run(name: str) -> dict[str, Any]:
    return simulate(load_scenario(FILES[name])).summary()


def served(name: str) -> float:
    return run(name)["throughput"]["requests_per_s"]


def chat(**changes: Any) -> Scenario:
    base = load_scenario(EXAMPLES / "demo-chat.yaml").replace(
        workload__requests=200, workload__arrivals__rate_per_s=30.0, kv_cache__enable_prefix_caching=False
    )
    return base.replace(**changes)


@pytest.mark.parametrize(
    ("length", "low", "high"), [(4096, 0.70, 0.85), (8192, 0.70, 0.85), (32768, 0.9, 1.0)]
)
def test_slabs_of_the_longest_sequence_waste_what_pages_do_not(length: int, low: float, high: float) -> None:
    """Kwon et al. (SOSP 2023) report 60-80 % for engines of 2023, and under 4 % for pages."""
    load = chat(workload__requests=600, workload__arrivals__rate_per_s=16.0, kv_cache__max_model_len=length)
    slabs = simulate(load.replace(kv_cache__allocator="contiguous")).summary()
    pages = simulate(load).summary()
    assert low <= slabs["kv"]["waste"] <= high
    assert pages["kv"]["waste"] < 0.04
    assert slabs["throughput"]["requests_per_s"] <= pages["throughput"]["requests_per_s"]


def test_batch_and_throughput_follow_the_memory() -> None:
    assert list(FILES) == ["contiguous", "paged", "paged-prefix", "fp8-kv", "eviction-25", "dram-tier"]
    assert all(run(name)["requests"]["completed"] == 700 for name in FILES)
    assert run("contiguous")["kv"]["waste"] > 0.7
    assert run("paged")["kv"]["waste"] < 0.04
    assert 1.5 * served("contiguous") < served("paged") < served("paged-prefix") < served("fp8-kv")
    assert served("paged-prefix") < served("dram-tier")
    assert run("dram-tier")["kv"]["prefix_hit_rate"] > 1.3 * run("paged-prefix")["kv"]["prefix_hit_rate"]


def test_eviction_serves_more_than_pages_without_prefixes_and_pays_for_its_scores() -> None:
    evicted, paged = run("eviction-25"), run("paged")
    assert served("eviction-25") > served("paged")
    beside = 1 + 4 / 512  # 32 bit of score beside keys and values of 128 elements in 16 bit
    tokens = [each["memory"]["kv_capacity_tokens"] for each in (evicted, paged)]
    assert tokens[0] == pytest.approx(4 * tokens[1] / beside, rel=1e-3)
    assert evicted["time_share"]["hbm_activations"] > 2 * paged["time_share"]["hbm_activations"]


UNVALIDATED = {
    "h2o": {"kv_cache__eviction": {"kind": "h2o", "budget": 0.25}},
    "snapkv": {"kv_cache__eviction": {"kind": "snapkv", "budget": 0.25}},
    "sinks": {"kv_cache__eviction": {"kind": "sinks", "window": 1024}},
    "window": {"kv_cache__eviction": {"kind": "window", "window": 1024}},
    "int8": {"quantization__kv_cache": "int8"},
    "int4": {"quantization__kv_cache": "int4"},
    "sharing": {"kv_cache__cross_layer_sharing": 2},
}


@pytest.mark.parametrize("name", UNVALIDATED)
def test_every_lever_that_was_not_measured_says_so(name: str) -> None:
    said = "\n".join(
        simulate(chat(workload__requests=5, **UNVALIDATED[name])).summary()["confidence"]["warnings"]
    )
    assert "unvalidated" in said
    assert "quality is not simulated" in said


def record(scenario: Scenario) -> RunRecord:
    return simulate(scenario).record


def same_times(one: RunRecord, other: RunRecord) -> bool:
    return all(
        (one.requests[name] == other.requests[name]).all() for name in ("first_token_ns", "last_token_ns")
    )


@pytest.mark.parametrize(
    "eviction",
    [
        {"kind": "h2o", "budget": 1.0},
        {"kind": "window", "window": 32768},
        {"kind": "sinks", "window": 32764, "sinks": 4},
    ],
)
def test_whoever_drops_nothing_changes_nothing(eviction: dict[str, Any]) -> None:
    """To the nanosecond: a budget of 100 %, and windows as long as the longest sequence."""
    assert same_times(record(chat(kv_cache__eviction=eviction)), record(chat()))


@pytest.mark.parametrize("name", ["h2o", "sinks", "int4", "sharing"])
def test_jumps_change_nothing(name: str) -> None:
    scenario = chat(workload__requests=60, **UNVALIDATED[name])
    assert same_times(record(scenario), record(scenario.replace(simulation__fast_forward=False)))


@pytest.mark.parametrize("window", [64, 1000, 4096])
def test_a_window_never_slows_a_decode_nor_takes_more_blocks(window: int) -> None:
    plain, kept = resolve(chat()), resolve(chat(kv_cache__eviction={"kind": "sinks", "window": window}))
    before, after = step_model(plain), step_model(kept)
    for batch, context in ((1, 100), (1, 20000), (16, 3000), (64, 6000)):
        contexts = [context] * batch
        times = [m.step_ns(batch, batch * context, context, [], batch, contexts) for m in (before, after)]
        # The window's own lane may start its kernels a little differently.
        assert times[1] <= 1.01 * times[0], (batch, context)
    pages, rings = (make_allocator(each, size_pool(each)) for each in (plain, kept))
    for tokens in (1, 15, 16, 17, window, window + 4, window + 5, 30000):
        assert rings.blocks_of(tokens) <= pages.blocks_of(tokens)
    assert rings.blocks_of(30000) == -(-(window + 4) // 16)
    assert rings.num_blocks == pages.num_blocks


@pytest.mark.parametrize("budget", [0.05, 0.25, 0.9])
def test_a_budget_never_slows_the_kernel_that_scores_nor_takes_more_memory(budget: float) -> None:
    plain = resolve(chat(kernels__attention="naive"))
    kept = resolve(chat(kv_cache__eviction={"kind": "h2o", "budget": budget}))
    before, after = step_model(plain), step_model(kept)
    for batch, context in ((1, 100), (1, 20000), (16, 3000), (64, 6000)):
        step = (batch, batch * context, context, [], batch)
        assert after.step_ns(*step) <= before.step_ns(*step)
    # The score matrix is in both sums; what every entry has drawn so far, 32 bit for each KV head, in one.
    blocks = [size_pool(each).num_gpu_blocks for each in (plain, kept)]
    assert blocks[1] == pytest.approx(blocks[0] / budget / (1 + 4 / 512), rel=5e-3)  # whole bytes


def test_scores_that_eviction_needs_are_in_the_memory_sum() -> None:
    """Six bytes for each head, query and key of the largest step, as with naive attention; flash writes none."""
    h2o = {"kind": "h2o", "budget": 0.25}
    kept = resolve(chat(kv_cache__eviction=h2o, kv_cache__max_model_len=8192))
    (scores,) = (term for term in size_pool(kept).terms if term.name == "activations")
    tokens = kept.scheduler.max_num_batched_tokens
    assert scores.bytes == 6 * 32 * min(tokens, 8192) * 8192 + 2 * tokens * 3 * 4096
    assert "score matrix" in scores.note
    with pytest.raises(MemboundError, match="eviction h2o needs"):
        size_pool(resolve(chat(kv_cache__eviction=h2o, engine="sglang-0.5.6")))


def test_sharing_layers_buys_room_and_no_time() -> None:
    plain, shared = resolve(chat()), resolve(chat(kv_cache__cross_layer_sharing=2))
    assert size_pool(shared).num_gpu_blocks == pytest.approx(2 * size_pool(plain).num_gpu_blocks, rel=1e-3)
    times = [step_model(each).step_ns(32, 32 * 2000, 2000, [], 32) for each in (plain, shared)]
    assert times[1] == pytest.approx(times[0], rel=0.02)


def test_narrow_keys_take_their_bytes_with_scales() -> None:
    """int4 with a scale and a zero in fp16 for 128 elements: 4.25 bits, so 3.76 times the tokens of bf16."""
    blocks = {
        name: size_pool(resolve(chat(quantization__kv_cache=name))).num_gpu_blocks
        for name in ("bf16", "fp8", "int4")
    }
    assert blocks["fp8"] == pytest.approx(2 * blocks["bf16"], rel=1e-3)
    assert blocks["int4"] == pytest.approx(16 / 4.25 * blocks["bf16"], rel=1e-3)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"kv_cache__eviction": {"kind": "h2o", "budget": 0.25}, "kv_cache__enable_prefix_caching": True},
            "kv_cache.enable_prefix_caching: true with eviction h2o",
        ),
        ({"model": "deepseek-v3", "kv_cache__cross_layer_sharing": 2}, "keeps latents"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(MemboundError, match=said) as caught:
        resolve(chat(**changes))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "eviction",
    [
        {"kind": "h2o"},
        {"kind": "h2o", "budget": 0.0},
        {"kind": "window", "budget": 0.5},
        {"kind": "window", "sinks": 4},
    ],
)
def test_an_eviction_takes_its_own_settings_alone(eviction: dict[str, Any]) -> None:
    with pytest.raises(MemboundError, match=r"kv_cache\.eviction"):
        chat(kv_cache__eviction=eviction)
