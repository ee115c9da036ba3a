"""What a run says of the steady state, and of its windows of arrival time."""

import itertools

import numpy as np
import pytest
import yaml
from membound.sim.metrics.steady import BATCHES, LEVEL, STUDENT
from membound.sim.metrics.windows import MAX_WINDOWS, windows
from membound.sim.output.output import summary
from membound.sim.run import simulate
from membound.sim.scenario import parse_scenario
from scipy.special import stdtrit

CHAT = """
device: h100_sxm
model: llama-3.1-8b
workload:
  arrivals: {kind: poisson, rate_per_s: 6}
  input_tokens: {kind: lognormal, p50: 400, p99: 2000}
  output_tokens: {kind: lognormal, p50: 60, p99: 400}
  requests: 800
slo: {classes: {default: {ttft_s: 1}}}
"""


def run(*sets):
    return simulate(parse_scenario(yaml.safe_load(CHAT), list(sets)))


def test_means_lie_in_their_intervals_and_near_those_of_the_run():
    found = run().summary()
    steady = found["steady_state"]
    for metric in ("ttft_s", "tpot_s", "e2e_s"):
        low, high = steady["interval"][f"{metric}.mean"]
        assert low <= steady[metric]["mean"] <= high
        assert low <= found["latency"][metric]["mean"] <= high
    assert 0.9 * 800 < steady["requests"] <= 800


def test_a_stated_warm_up_is_left_out_of_the_steady_state_and_of_nothing_else():
    plain, cut = run().summary(), run("simulation.warmup=20s").summary()
    assert cut["latency"] == plain["latency"]
    assert cut["steady_state"]["warmup_s"] == pytest.approx(20, abs=1.5)
    assert plain["steady_state"]["requests"] - cut["steady_state"]["requests"] == pytest.approx(120, abs=45)


def test_beyond_saturation_there_is_no_steady_state_and_the_reason_says_so():
    found = run("workload.arrivals.rate_per_s=200").summary()
    assert found["verdict"]["stability"] != "steady"
    assert found["steady_state"]["ttft_s"]["mean"] is None
    assert found["steady_state"]["interval"] is None
    assert any(
        "steady_state" in text and "no steady state" in text for text in found["confidence"]["warnings"]
    )


def test_the_tabled_quantile_is_students():
    assert pytest.approx(stdtrit(BATCHES - 1, 0.5 + LEVEL / 2), rel=1e-15) == STUDENT


def test_windows_hold_every_request_once_and_follow_each_other():
    found = run("simulation.window=10s").summary()
    rows = found["windows"]
    assert sum(row["requests"] for row in rows) == 800
    assert all(a["end_s"] == b["start_s"] for a, b in itertools.pairwise(rows))
    weighted = sum(row["attainment"] * row["requests"] for row in rows if row["requests"]) / 800
    assert weighted == pytest.approx(found["slo"]["attainment"])
    assert "windows" not in run().summary()


def test_a_window_beyond_the_run_is_the_run():
    result = run("simulation.window=1h")
    (row,) = windows(result.record, 3600)
    ttft = result.record.requests["first_token_ns"] - result.record.requests["arrival_ns"]
    assert row["ttft_s_p50"] == pytest.approx(np.median(ttft) / 1e9)


def test_tiny_windows_are_lengthened_so_that_memory_is_bounded():
    assert len(windows(run().record, 1e-6)) <= MAX_WINDOWS
    assert summary(run("simulation.window=1ms").record)["windows"]
