"""Throughput against concurrency, and what a planner must vary, as published cases have it.

Figures are typed in with their case; where the shared folder is there, they are compared with it.
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import membound as mb
import pytest
from membound.sim.studies.capacity_plan import load_plan

SHARED = Path(__file__).resolve().parents[2].parent / "shared"
CASES = SHARED / "cases" / "cases.jsonl"
OVERLOAD = SHARED / "measured" / "e2e" / "requests" / "lss-RTX4090-Llama-3.1-8B.csv.gz"

TYPED: dict[str, dict[str, Any]] = {
    "C01": {"out_tok_s": 1066, "ttft_mean_ms": 65457, "ttft_p90_ms": 121122, "tpot_mean_ms": 32.4,
            "tpot_p99_ms": 56.0, "max_running": 49, "span_s": 183.6, "kv_tokens": 41408},
    "C05": {"tok_s": {"tp2": {"1": 36.2, "16": 528, "128": 2300}, "tp4": {"1": 50, "16": 660},
                      "tp8": {"1": 63, "16": 760}}},
    "C07": {"out_tok_s": [908.8, 1536.9, 2530.3, 3964.7], "p95_s": [2.361, 2.671, 3.248, 4.162]},
    "C09": {"tok_s": [9.3, 37, 77], "suspicious": True},
    "G4": {"levers": ["offload", "TTFT", "TPOT", "throughput", "cost per tier"]},
}  # fmt: skip


def test_every_case_of_the_two_themes_is_here_with_its_figures():
    if not CASES.is_file():
        pytest.skip("the shared folder is not beside the repository")
    rows = [json.loads(line) for line in CASES.read_text(encoding="utf-8").splitlines()]
    themes = ("concurrency_curve", "capacity_cost")
    cases = {row["id"]: row["inputs"] | row["expected"] for row in rows if row["theme"] in themes}
    assert set(cases) == set(TYPED)
    for name, figures in TYPED.items():
        assert {key: cases[name][key] for key in figures} == figures, name


def closed_loop(device: str, model: str, users: int, rounds: int = 1, **changes: Any) -> dict[str, Any]:
    """Return the summary of so many users who ask one after the other."""
    load = {"arrivals": {"kind": "closed_loop", "concurrency": users}, "requests": users * rounds}
    load |= {
        "input_tokens": changes.pop("input_tokens", 256),
        "output_tokens": changes.pop("output_tokens", 256),
    }
    asked = {"device": device, "model": model, "workload": load, "kv_cache": {"max_model_len": 4096}}
    return mb.simulate(mb.Scenario.model_validate(asked | changes)).summary()


def output_rate(summary: dict[str, Any]) -> float:
    return summary["throughput"]["output_tokens_per_s"]


@pytest.mark.skipif(not OVERLOAD.is_file(), reason="the measured runs are not beside the repository")
def test_c01_an_overloaded_4090_serves_what_its_kv_pool_holds():
    """Within 10 % on throughput and mean TPOT and 20 % on mean TTFT, as the case asks."""
    measured = TYPED["C01"]
    asked = {
        "device": "rtx_4090", "model": "llama-3.1-8b", "engine": "vllm-0.19",
        "scheduler": {"max_num_seqs": 256, "max_num_batched_tokens": 2048},
        "kv_cache": {"max_model_len": 32768, "num_gpu_blocks_override": measured["kv_tokens"] // 16},
        "workload": {"trace": {"path": str(OVERLOAD)}},
    }  # fmt: skip
    result = mb.simulate(mb.Scenario.model_validate(asked), keep_steps=True)
    summary = result.summary()
    latency = summary["latency"]
    assert output_rate(summary) == pytest.approx(measured["out_tok_s"], rel=0.1)
    assert 1000 * latency["tpot_s"]["mean"] == pytest.approx(measured["tpot_mean_ms"], rel=0.1)
    assert 1000 * latency["tpot_s"]["p99"] == pytest.approx(measured["tpot_p99_ms"], rel=0.2)
    assert 1000 * latency["ttft_s"]["mean"] == pytest.approx(measured["ttft_mean_ms"], rel=0.2)
    assert 1000 * latency["ttft_s"]["p90"] == pytest.approx(measured["ttft_p90_ms"], rel=0.2)
    assert summary["throughput"]["duration_s"] == pytest.approx(measured["span_s"], rel=0.1)
    steps = result.record.steps
    assert steps is not None
    assert int(steps["running"].max()) == pytest.approx(measured["max_running"], rel=0.1)
    assert summary["limiter"]["kv_blocks"] > 0.5


def test_c05_batch_16_costs_a_tenth_more_time_than_batch_1_and_ranks_bring_less_than_their_number():
    """32B on A100s by the oldest engine profile, since the report is of early 2025: to 15 % on two ranks.

    Form factor and link behind four and eight are not stated; the sign is checked.
    """
    measured = TYPED["C05"]["tok_s"]
    rates = {
        (ranks, batch): output_rate(
            closed_loop("a100_sxm_80gb", "qwen2.5-32b", batch, input_tokens=1, output_tokens=200,
                        engine="vllm-0.12", parallelism={"tensor_parallel_size": ranks})
        )
        for ranks in (2, 4, 8)
        for batch in (1, 16)
    }  # fmt: skip
    for batch in (1, 16):
        assert rates[2, batch] == pytest.approx(measured["tp2"][str(batch)], rel=0.15)
        for fewer, more in ((2, 4), (4, 8)):
            assert rates[fewer, batch] < rates[more, batch] < 2 * rates[fewer, batch]
    cost = 16 * rates[2, 1] / rates[2, 16]
    assert cost == pytest.approx(16 * measured["tp2"]["1"] / measured["tp2"]["16"], abs=0.05)


def test_c07_twice_the_clients_bring_less_than_twice_the_tokens_and_wait_longer():
    """The case names no model; its curve's shape and Little's law must hold for one that takes eight A100s."""
    measured = TYPED["C07"]["out_tok_s"]
    users = (8, 16, 32, 64)
    runs = [
        closed_loop("a100_sxm_80gb", "llama-3.1-70b", n, 4, parallelism={"tensor_parallel_size": 8})
        for n in users
    ]
    ours = [b / a for a, b in pairwise(output_rate(run) for run in runs)]
    theirs = [b / a for a, b in pairwise(measured)]
    assert ours == pytest.approx(theirs, rel=0.2)
    assert all(1 < gain < 2 for gain in ours)
    waits = [run["latency"]["e2e_s"]["mean"] for run in runs]
    assert waits == sorted(waits)
    for n, run, wait in zip(users, runs, waits, strict=True):
        assert run["throughput"]["requests_per_s"] * wait == pytest.approx(n, rel=0.15)


def test_c09_a_request_is_never_served_faster_because_there_are_others():
    """1, 3 and 6 requests at 9.3, 37 and 77 tokens/s: the single one was measured badly."""
    published = [rate / n for rate, n in zip(TYPED["C09"]["tok_s"], (1, 3, 6), strict=True)]
    assert published[0] < published[1] < published[2]
    for device, model in (("l4", "llama-3.1-8b"), ("rtx_4090", "qwen3-4b"), ("h100_sxm", "qwen3-30b-a3b")):
        ours = [output_rate(closed_loop(device, model, n)) / n for n in (1, 3, 6)]
        assert ours == sorted(ours, reverse=True), device


def test_g4_offload_is_a_dimension_of_a_plan_beside_latency_throughput_and_cost(tmp_path):
    (tmp_path / "base.yaml").write_text(
        "device: h100_sxm\nmodel: llama-3.1-8b\nworkload: {arrivals: {kind: poisson, rate_per_s: 4}, "
        "input_tokens: 64, output_tokens: 16, requests: 20}\n"
        "slo: {classes: {default: {ttft_s: 1, tpot_s: 0.1}}}\n"
    )
    plan = tmp_path / "plan.yaml"
    plan.write_text(
        "base: base.yaml\nload: {rate_per_s: 4}\nrequests: 20\n"
        "candidates: {kv_cache.tiers: [[], [{kind: dram, capacity: 50GiB}]], device: [h100_sxm]}\n"
    )
    found = mb.plan(load_plan(plan), draws=0, jobs=1)
    assert [len(option.settings["kv_cache.tiers"]) for option in found.options].count(1) == 1
    best = found.options[0]
    assert best.usd_per_million_output_tokens is not None
    assert best.metrics is not None
    for metric in ("latency.ttft_s.p99", "latency.tpot_s.mean", "throughput.output_tokens_per_s"):
        assert best.metrics[metric] is not None
