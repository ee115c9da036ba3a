"""Published pitfalls of measuring: what is no memory bandwidth, and whose clock a latency is read from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from membound.hwmodels.device import load_device
from membound.sim.run import simulate
from membound.sim.scenario import parse_scenario

CASES = Path(__file__).resolve().parents[2].parent / "shared" / "cases" / "cases.jsonl"


@pytest.mark.skipif(not CASES.is_file(), reason="no public cases beside the repository")
def test_every_measurement_pitfall_has_its_test() -> None:
    cases = map(json.loads, CASES.read_text(encoding="utf-8").splitlines())
    assert {case["id"] for case in cases if case["theme"] == "measurement_pitfall"} == {"Z1", "Z3"}


def test_z1_a_copy_that_fits_the_last_level_cache_does_not_measure_memory() -> None:
    """mli/transformers-benchmarks#4: 3,868 GB/s on an RTX 4090 over 4,194,304 numbers in fp32, all within its cache.

    Our timings take turns over more than the cache holds: tests/kernels/test_timer.py.
    """
    card = load_device("rtx_4090")
    assert card.l2_bytes / 4 > 4_194_304 * 4
    assert 3 * card.hbm_bandwidth < 3868e9
    assert 0.85 < 1727e9 / load_device("a100_pcie_80gb").hbm_bandwidth < 0.95, (
        "the A800 of the case is plausible"
    )


def test_z3_what_the_client_adds_is_a_line_of_its_own_beside_the_engines_ttft() -> None:
    """tenstorrent/tt-inference-server#190: 200 ms at batch 1 and 40 ms at 32 between engine and client.

    How large it is depends on a machine that is not modelled; that it is told apart, and added once, is the law.
    """
    workload = {"arrivals": {"kind": "closed_loop", "concurrency": 1}, "input_tokens": 500, "output_tokens": 5,
                "requests": 4}  # fmt: skip
    result = simulate(
        parse_scenario(
            {"device": "h100_sxm", "model": "llama-3.1-8b", "engine": "vllm-0.24", "workload": workload}
        )
    )
    latency, own = result.summary()["latency"], result.record.setup.client_overhead_s
    assert own
    assert latency["client_ttft_s"]["mean"] - latency["ttft_s"]["mean"] == pytest.approx(own, rel=1e-6)
