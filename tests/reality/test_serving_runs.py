"""Served runs replayed request by request: how far simulated latencies are from those clients measured.

Nothing is fitted here: device, engine and step parameters are the starting values. Only runs that calibration
may look at are read.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from membound.benchmarks.serving_accuracy import FOLDER, TABLES
from membound.calibrate.engineprofile import with_step
from membound.calibrate.serving.compare import RunErrors, compare
from membound.calibrate.serving.fitengine import TOLERANCE, counted
from membound.calibrate.serving.load import Choice, load_runs
from membound.calibrate.serving.play import Played, play
from membound.calibrate.serving.run import ServedRun
from membound.hwmodels.engine import load_engine
from membound.sim.output.result import SimulationResult
from membound.sim.run import simulate
from membound.sim.scenario import Scenario

pytestmark = pytest.mark.skipif(
    not FOLDER.is_dir(), reason="the measured per-request files (../shared) are not here"
)

RUNS = ("residency-sweep_rate-agg_2rps-vanilla", "residency-sweep_rate-agg_6rps-vanilla")
BARS = {"e2e": 0.04, "tpot": 0.04, "ttft": 0.08}
"""How far the mean may be off: a promise for this model, card and engine below saturation."""


@cache
def served(run: str) -> ServedRun:
    """Return a run of Qwen3-14B on one H100 under vLLM 0.23 (inference-sim/residency-vllm).

    No two prompts share anything. Data sets that repeat whole prompts would show it: a request that agrees in
    tenant and length with an earlier one would get its first token sooner. Here it does not (2 requests/s:
    67.1 ms, the first of each 65.6 ms), and TTFT steps up where prompt and decodes together pass 1,024 rows,
    which a cached prefix would shift.
    """
    runs = load_runs(FOLDER / TABLES[0], Choice(parts=["fit"], models=["Qwen3-14B"]))[0]
    return next(each for each in runs if each.label.run_id == run)


@cache
def played(run: str) -> Played:
    return play(served(run))


@cache
def errors(run: str) -> RunErrors:
    return compare(served(run), played(run))


def scenario(run: str) -> Scenario:
    return served(run).scenario


@cache
def faster(factor: float) -> SimulationResult:
    """Return the 6 requests/s trace with its arrivals ``factor`` times as close."""
    return simulate(scenario(RUNS[1]).replace(workload__trace__time_scale=1.0 / factor))


@pytest.mark.parametrize("metric", sorted(BARS))
@pytest.mark.parametrize("run", RUNS)
def test_mean_latencies_of_a_served_run(run: str, metric: str) -> None:
    assert abs(errors(run).error[f"{metric}_mean"]) < BARS[metric]


@pytest.mark.parametrize(("metric", "median", "tail"), [("e2e", 0.04, 0.06), ("ttft", 0.05, 0.10)])
@pytest.mark.parametrize("run", RUNS)
def test_the_spread_of_latencies_of_a_served_run(run: str, metric: str, median: float, tail: float) -> None:
    assert abs(errors(run).error[f"{metric}_p50"]) < median
    assert abs(errors(run).error[f"{metric}_p99"]) < tail


@pytest.mark.parametrize("run", RUNS)
def test_single_requests_of_a_served_run(run: str) -> None:
    # Each request met the batches it met in reality: without its own neighbours its E2E would be off by the
    # spread of the run (4 % at 2 requests/s, 6 % at 6).
    found = played(run)
    assert errors(run).per_request["e2e_mape"] < 0.035
    assert np.corrcoef(found.measured["e2e"], found.simulated["e2e"])[0, 1] > 0.9


def test_every_request_of_the_file_is_compared() -> None:
    assert [len(played(run).measured["e2e"]) for run in RUNS] == [1212, 3610]


def test_the_gemm_efficiency_of_the_profile_is_where_the_loss_of_both_runs_is_least() -> None:
    # fit-engine's loss; `membound calibrate fit-engine ... --parameter engine_gemm_efficiency=0.7` ends at 0.874.
    def loss(efficiency: float | None) -> float:
        squares = 0.0
        for run in map(served, RUNS):
            engine = load_engine(run.scenario.engine)
            if efficiency is not None:
                engine = with_step(engine, {"engine_gemm_efficiency": efficiency}, "test")
            found = compare(
                run, play(run, server=lambda resolved, engine=engine: replace(resolved, engine=engine))
            )
            squares += sum((found.error[name] / TOLERANCE[name]) ** 2 for name in counted(run, found.error))
        return squares

    assert load_engine("vllm-0.23").engine_gemm_efficiency == 0.88
    assert loss(None) < min(loss(0.82), loss(0.94))


def test_prompts_that_were_taken_for_repeats_would_start_far_too_early() -> None:
    # What tells whether a data set repeats whole prompts: had these been repeats, TTFT would be half of it.
    repeats = scenario(RUNS[0]).replace(workload__trace__same_prompt=["tenant", "input_tokens"])
    mean_s = simulate(repeats).summary()["latency"]["client_ttft_s"]["mean"]
    assert mean_s / played(RUNS[0]).measured["ttft"].mean() < 0.6


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
