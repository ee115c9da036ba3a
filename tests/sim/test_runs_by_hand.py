"""Figures of whole runs that can be worked out by hand from a few events."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from membound.sim.output.result import SimulationResult
from membound.sim.run import simulate
from membound.sim.scenario import parse_scenario

PROMPT, ANSWER = 100, 50


def run(tmp_path: Path, rows: list[tuple[float, int, int]], *sets: str, **sections: Any) -> SimulationResult:
    trace = tmp_path / "trace.csv"
    lines = "".join(f"{arrival},{prompt},{answer}\n" for arrival, prompt, answer in rows)
    trace.write_text("arrival_s,input_tokens,output_tokens\n" + lines)
    scenario = {
        "device": "h100_sxm",
        "model": "llama-3.1-8b",
        "engine": "vllm-0.24",
        "kv_cache": {"max_model_len": 1000, "num_gpu_blocks_override": 201},
        "workload": {"trace": {"path": str(trace)}},
        **sections,
    }
    return simulate(parse_scenario(scenario, list(sets)), keep_steps=True)


def test_one_request_in_a_slab(tmp_path: Path) -> None:
    """201 blocks, one of them vLLM's null block; a slab of 1000 tokens takes 63, and nobody waits for the rest."""
    result = run(tmp_path, [(0.0, PROMPT, ANSWER)], "kv_cache.allocator=contiguous")
    record, kv = result.record, result.summary()["kv"]
    steps = record.steps
    assert steps is not None
    durations, live = steps["duration_ns"], PROMPT + np.arange(ANSWER)
    assert len(durations) == ANSWER
    assert kv["external_fragmentation"] == kv["waste_external"] == 0
    assert kv["peak_usage"] == kv["mean_usage"] == 63 / 200
    held = 63 * 16 * int(durations.sum())
    needed = (PROMPT + ANSWER - 1) * int(durations.sum())
    assert kv["waste_reserved"] == pytest.approx((needed - int((live * durations).sum())) / held, abs=1e-12)
    assert kv["waste_internal"] == pytest.approx(1 - needed / held, abs=1e-12)
    assert kv["waste"] == pytest.approx(kv["internal_fragmentation"], abs=1e-12)
    assert kv["internal_fragmentation"] == pytest.approx(1 - int((live * durations).sum()) / held, abs=1e-12)


def test_mean_usage_counts_the_time_without_work(tmp_path: Path) -> None:
    """The second request comes a minute after the first: the pool is empty meanwhile."""
    result = run(tmp_path, [(0.0, PROMPT, ANSWER), (60.0, PROMPT, ANSWER)])
    record, found = result.record, result.summary()
    steps = record.steps
    assert steps is not None
    used = int((steps["used_blocks"] * steps["duration_ns"]).sum())
    assert found["kv"]["mean_usage"] == pytest.approx(used / (200 * record.wall_ns), abs=1e-15)
    assert found["kv"]["peak_usage"] == -(-(PROMPT + ANSWER - 1) // 16) / 200
    assert found["time_share"]["idle"] == pytest.approx(1 - record.busy_ns / record.wall_ns, abs=1e-15)
    assert found["time_share"]["idle"] > 0.95
    assert found["limiter"]["arrivals"] == 1.0


@pytest.mark.parametrize(
    ("sets", "limiter"),
    [
        (["scheduler.max_num_seqs=1"], "max_num_seqs"),
        (["scheduler.max_num_seqs=2", "scheduler.name=static"], "max_num_seqs"),
        (["kv_cache.num_gpu_blocks_override=17"], "kv_blocks"),
        (["scheduler.max_num_batched_tokens=16"], "token_budget"),
        ([], "arrivals"),
    ],
)
def test_the_limiter_is_what_keeps_the_batch_small(tmp_path: Path, sets: list[str], limiter: str) -> None:
    """Ten at once, all of a length: one setting at a time keeps them from running together."""
    answer = 2 if limiter == "token_budget" else ANSWER
    result = run(tmp_path, [(0.0, PROMPT, answer)] * 10, *sets)
    shares = result.summary()["limiter"]
    assert max(shares, key=lambda name: shares[name]) == limiter
    assert shares[limiter] > 0.5
    steps = result.record.steps
    assert steps is not None
    by_steps = {
        code: int(steps["duration_ns"][steps["limiter"] == code].sum()) for code in set(steps["limiter"])
    }
    names = list(result.record.limiter_ns)
    assert {names[code]: ns for code, ns in by_steps.items()} == {
        name: ns for name, ns in result.record.limiter_ns.items() if ns
    }


def test_preemptions_by_request_add_up(tmp_path: Path) -> None:
    result = run(tmp_path, [(0.0, PROMPT, 300)] * 12, "kv_cache.num_gpu_blocks_override=60")
    preemptions = result.record.requests["num_preemptions"]
    assert preemptions.max() > 1
    assert preemptions.sum() == result.summary()["kv"]["preemptions"]


def test_ttft_and_decode_time_of_a_lone_request_are_its_steps(tmp_path: Path) -> None:
    """Who waits for nobody spends its TTFT in its first step and its decode time in the others, cause by cause."""
    record = run(tmp_path, [(0.0, PROMPT, ANSWER), (60.0, 3 * PROMPT, ANSWER)]).record
    requests, causes = record.requests, record.per_request_causes
    assert causes is not None
    np.testing.assert_array_equal(
        causes["ttft"].sum(axis=1), requests["first_token_ns"] - requests["arrival_ns"]
    )
    np.testing.assert_array_equal(
        causes["decode"].sum(axis=1), requests["last_token_ns"] - requests["first_token_ns"]
    )
    total = causes["ttft"].sum(axis=0) + causes["decode"].sum(axis=0)
    assert dict(zip(record.causes_ns, total.tolist(), strict=True)) == {**record.causes_ns, "idle": 0}


def test_the_elasticity_foretells_what_a_better_device_saves(tmp_path: Path) -> None:
    """Within what a sample of the steps that ran can say: it starts with the first, which computes prompts."""
    rows = [(0.0, 2 * PROMPT, 3 * ANSWER)] * 8
    base = run(tmp_path, rows).record
    for lever, override in (("hbm_bandwidth", "hbm_bandwidth"), ("peak_flops", "peak_flops")):
        better = run(tmp_path, rows, f"device={{base: h100_sxm, {override}: x1.1}}").record
        saved = 1 - better.busy_ns / base.busy_ns
        assert 0 <= saved < 0.1
        assert base.work["elasticity"][lever] * 0.1 == pytest.approx(saved, rel=0.05, abs=4e-3)


def test_a_request_of_exactly_the_longest_sequence_is_served(tmp_path: Path) -> None:
    requests = run(tmp_path, [(0.0, 950, ANSWER), (0.0, 951, ANSWER), (0.0, 1001, 1)]).summary()["requests"]
    assert requests["completed"] == 1
    assert requests["rejected_by_reason"] == {
        "prompt and answer exceed max_model_len": 1,
        "prompt exceeds max_model_len": 1,
    }


def test_the_watermark_is_a_share_of_all_blocks(tmp_path: Path) -> None:
    """Of 20 blocks, one of them the null block, 5 % are one: 9 + 10 blocks fit the 19 only without a watermark."""
    rows = [(0.0, 143, 2), (0.0, 145, 2)]
    for watermark, together in ((0.0, True), (0.049, True), (0.05, False)):
        sets = ["kv_cache.num_gpu_blocks_override=20", f"scheduler.watermark={watermark}"]
        requests = run(tmp_path, rows, *sets).record.requests
        assert (requests["first_scheduled_ns"][1] == 0) == together, watermark


def test_the_bytes_that_count_as_useful_hold_the_keys_and_values(tmp_path: Path) -> None:
    """Half the width saves 64 KiB a key: 32 layers, 8 heads, 128 wide, keys and values, one byte less."""
    wide, narrow = (
        run(tmp_path, [(0.0, PROMPT, ANSWER)], f"quantization.kv_cache={dtype}").record.work
        for dtype in ("bf16", "fp8")
    )
    read = sum(PROMPT + position for position in range(1, ANSWER))
    saved = wide["useful_hbm_bytes"] - narrow["useful_hbm_bytes"]
    assert saved == pytest.approx(read * 2 * 32 * 8 * 128, rel=0.05)


def test_a_long_prompt_is_cut_only_where_others_are_there(tmp_path: Path) -> None:
    cap = "scheduler.long_prefill_token_threshold=64"
    alone, together = (
        run(tmp_path, [(0.0, 500, 1)] * count, cap).record.steps for count in (1, 2)
    )  # fmt: skip
    assert alone is not None
    assert together is not None
    assert alone["prefill_tokens"].tolist() == [500]
    assert together["prefill_tokens"].tolist() == [128] * 7 + [104]


def test_the_peak_is_the_fullest_moment_not_the_last(tmp_path: Path) -> None:
    kv = run(tmp_path, [(0.0, 400, 3), (10.0, 20, 3)]).summary()["kv"]
    assert kv["peak_usage"] == 26 / 200


def test_prefixes_are_looked_up_once_a_request_however_often_it_is_preempted(tmp_path: Path) -> None:
    result = run(tmp_path, [(0.0, PROMPT, 300)] * 12, "kv_cache.num_gpu_blocks_override=60")
    assert result.summary()["kv"]["preemptions"] > 1
    assert result.record.kv["prefix_queried_tokens"] == 12 * PROMPT
    assert result.record.kv["prefix_hit_tokens"] == result.record.requests["num_cached_tokens"].sum() == 0
