"""Served runs replayed request by request: how far simulated latencies are from those clients measured.

Nothing is fitted here: device, engine and step parameters are the starting values. Only runs that calibration
may look at are read.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from membound.benchmarks.serving_check import FOLDER, RUNS, check, scenario
from membound.sim.measured import Compared
from membound.sim.result import SimulationResult
from membound.sim.run import simulate

pytestmark = pytest.mark.skipif(
    not FOLDER.is_dir(), reason="the measured per-request files (../shared) are not here"
)

BARS = {"e2e_s": 0.04, "tpot_s": 0.04, "ttft_s": 0.08}
"""How far the mean may be off: a promise for this model, card and engine below saturation."""


@cache
def compared(run: str) -> dict[str, Compared]:
    return check(run)


@cache
def faster(factor: float) -> SimulationResult:
    """Return the 6 requests/s trace with its arrivals ``factor`` times as close."""
    return simulate(scenario(RUNS[1]).replace(workload__trace__time_scale=1.0 / factor))


@pytest.mark.parametrize("metric", sorted(BARS))
@pytest.mark.parametrize("run", RUNS)
def test_mean_latencies_of_a_served_run(run: str, metric: str) -> None:
    assert abs(compared(run)[metric].mean_error) < BARS[metric]


@pytest.mark.parametrize(("metric", "median", "tail"), [("e2e_s", 0.04, 0.06), ("ttft_s", 0.05, 0.10)])
@pytest.mark.parametrize("run", RUNS)
def test_the_spread_of_latencies_of_a_served_run(run: str, metric: str, median: float, tail: float) -> None:
    found = compared(run)[metric]
    assert abs(found.percentile_error(50)) < median
    assert abs(found.percentile_error(99)) < tail


@pytest.mark.parametrize("run", RUNS)
def test_single_requests_of_a_served_run(run: str) -> None:
    # Each request met the batches it met in reality: without its own neighbours its E2E would be off by the
    # spread of the run (4 % at 2 requests/s, 6 % at 6).
    found = compared(run)["e2e_s"]
    assert found.mape < 0.035
    assert np.corrcoef(found.measured, found.simulated)[0, 1] > 0.9


def test_every_request_of_the_file_is_compared() -> None:
    assert [len(compared(run)["e2e_s"].measured) for run in RUNS] == [1212, 3610]


def test_prompts_that_were_taken_for_repeats_would_start_far_too_early() -> None:
    # What tells whether a data set repeats whole prompts: had these been repeats, TTFT would be half of it.
    repeats = scenario(RUNS[0]).replace(workload__trace__same_prompt=["tenant", "input_tokens"])
    mean_s = simulate(repeats).summary()["latency"]["client_ttft_s"]["mean"]
    assert mean_s / compared(RUNS[0])["ttft_s"].measured.mean() < 0.6


def test_beyond_saturation_the_output_rate_no_longer_follows_the_arrivals() -> None:
    rates = {factor: faster(factor).summary()["throughput"]["requests_per_s"] for factor in (1, 2, 5, 10)}
    assert rates[1] == pytest.approx(6.0, rel=0.01)  # below: what arrives is served
    assert rates[2] == pytest.approx(12.0, rel=0.01)
    assert rates[10] == pytest.approx(rates[5], rel=0.02)  # far beyond: what the engine sustains


def test_a_saturated_engine_is_called_unstable_and_its_batch_is_full() -> None:
    summary = faster(5).summary()
    assert summary["verdict"]["sentence"].startswith("unstable")
    assert summary["limiter"]["max_num_seqs"] + summary["limiter"]["token_budget"] > 0.9
    assert summary["time_share"]["idle"] < 0.01


def test_what_a_saturated_engine_sustains_is_less_than_its_roofline() -> None:
    # A request is 986 + 127 tokens x 13.2e9 weights x 2 FLOP = 29.4 TFLOP, so at most 33.6 a second at the
    # peak and 24.6 at the share of it that matrices reach inside the engine (0.86 x 0.85).
    rate = faster(10).summary()["throughput"]["requests_per_s"]
    assert 0.5 * 24.6 < rate < 24.6
