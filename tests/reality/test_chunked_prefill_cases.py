"""What others measured when prompts came to be computed in chunks: the sign and the rough size of each change.

The figures are typed in with their source, so that the tests run without the shared folder; where it is there, they are
compared with its cases.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from membound.sim.run import simulate
from membound.sim.scenario import parse_scenario

CASES = Path(__file__).parents[2].parent / "shared" / "cases" / "cases.jsonl"
TYPED: dict[str, dict[str, Any]] = {
    "H1": {"throughput_high_load": "up", "ttft_low_load": "slightly worse", "itl_high_load": "better"},
    "H3": {
        "out_tok_s": {"off": 59.88, "on": 65.13},
        "ttft_mean_ms": {"off": 12009, "on": 11155},
        "tpot_mean_ms": {"off": 424.1, "on": 386.9},
        "tpot_p99_change": -0.177,
    },
}


def test_every_chunked_prefill_case_of_the_collection_is_here_with_its_figures() -> None:
    if not CASES.is_file():
        pytest.skip("the shared folder is not beside the repository")
    rows = [json.loads(line) for line in CASES.read_text(encoding="utf-8").splitlines()]
    assert {row["id"]: row["expected"] for row in rows if row["theme"] == "chunked_prefill"} == TYPED


@cache
def llama_70b_on_8_a100(name: str, budget: int, rate_per_s: float) -> dict[str, Any]:
    """Return the summary of a run as in vllm-project/vllm#3130: Llama-2-70B, TP8, chat lengths as in ShareGPT."""
    lengths = {"kind": "lognormal", "p50": 200, "sigma": 1.0, "min": 4, "max": 1024}
    scenario = {
        "device": "a100_sxm_80gb", "model": "llama-2-70b", "engine": "vllm-0.24",
        "parallelism": {"tensor_parallel_size": 8},
        "scheduler": {"name": name, "max_num_batched_tokens": budget, "async_scheduling": False},
        "kv_cache": {"max_model_len": 4096, "enable_prefix_caching": False},
        "workload": {"arrivals": {"kind": "poisson", "rate_per_s": rate_per_s}, "requests": 600,
                     "input_tokens": lengths, "output_tokens": lengths},
    }  # fmt: skip
    return simulate(parse_scenario(scenario, [])).summary()


def test_h1_under_full_load_chunks_serve_more_with_shorter_gaps() -> None:
    """vllm-project/vllm#3130: throughput up and inter-token latency better at high load."""
    whole, chunks = (llama_70b_on_8_a100(*kind, 12.0) for kind in (("vllm_v0", 4096), ("sarathi", 768)))
    assert 1.005 < chunks["throughput"]["requests_per_s"] / whole["throughput"]["requests_per_s"] < 1.5
    assert chunks["latency"]["itl_s"]["p99"] < 0.7 * whole["latency"]["itl_s"]["p99"]
    assert chunks["latency"]["tpot_s"]["mean"] < whole["latency"]["tpot_s"]["mean"]


def test_h1_at_one_request_a_second_the_first_token_is_slightly_later() -> None:
    """vllm-project/vllm#3130: a loss at about 1 request/s."""
    whole, chunks = (
        llama_70b_on_8_a100(*kind, 1.0)["latency"]["ttft_s"]["mean"]
        for kind in (("vllm_v0", 4096), ("sarathi", 768))
    )
    assert 1.0 < chunks / whole < 1.25


def test_h3_with_32_clients_chunks_serve_more_and_each_answer_is_sooner_done() -> None:
    """vllm-project/vllm-metal#255: 100 prompts of 1,024 + 128; off, the budget is the longest sequence.

    Measured on an Apple GPU, whose like is made of an L4 here. With 32 clients who always wait for an answer, what is
    gained in throughput is gained in latency (Little's law): 8.8 % and 8.5 %. How it is spread over TTFT and TPOT
    depends on the budgets, which the source does not state: TTFT is held to 20 points of the measured -7 % only.
    """
    found: dict[str, dict[str, float]] = {}
    for name, chunked, budget in (("off", False, 2048), ("on", True, 512)):
        scenario = {
            "device": {"base": "l4", "peak_flops": "x0.25", "hbm_bandwidth": "x0.5", "hbm_capacity": "64GB"},
            "model": "qwen3-8b", "engine": "vllm-0.24",
            "scheduler": {"enable_chunked_prefill": chunked, "max_num_batched_tokens": budget,
                          "async_scheduling": False},
            "kv_cache": {"max_model_len": 2048, "enable_prefix_caching": False},
            "workload": {"arrivals": {"kind": "closed_loop", "concurrency": 32}, "requests": 100,
                         "input_tokens": 1024, "output_tokens": 128},
        }  # fmt: skip
        run = simulate(parse_scenario(scenario, [])).summary()
        latency = run["latency"]
        found[name] = {
            "tok_s": run["throughput"]["output_tokens_per_s"],
            "ttft": latency["ttft_s"]["mean"],
            "tpot": latency["tpot_s"]["mean"],
            "tpot_p99": latency["tpot_s"]["p99"],
            "e2e": latency["e2e_s"]["mean"],
        }
    change = {name: found["on"][name] / found["off"][name] - 1 for name in found["on"]}
    measured = TYPED["H3"]
    assert 0.03 < change["tok_s"] < 0.15  # measured 65.13 / 59.88 - 1 = 8.8 %
    before, after = (
        measured["ttft_mean_ms"][at] + 127 * measured["tpot_mean_ms"][at] for at in ("off", "on")
    )
    assert after / before - 1 == pytest.approx(-0.085, abs=0.001)
    assert -0.15 < change["e2e"] < -0.03
    assert -0.15 < change["tpot"] < -0.03  # measured -8.8 %
    assert change["tpot_p99"] < -0.03  # measured -17.7 %
    assert change["ttft"] == pytest.approx(-0.071, abs=0.2)
