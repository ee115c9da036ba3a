"""Arrivals that are stamped as the engine takes requests up, between two of its steps."""

import numpy as np
import pytest
from membound.calibrate.serving.play import play
from membound.calibrate.serving.run import Label, ServedRun
from membound.calibrate.serving.takeup import came_before, taken_up_ns
from membound.sim.run import simulate
from membound.sim.scenario.resolve import resolve
from membound.sim.scenario.schema import Scenario

SCENARIO = Scenario.model_validate(
    {
        "model": "llama-3.1-8b",
        "device": "rtx_4090",
        "engine": "vllm-0.19",
        "workload": {
            "arrivals": {"kind": "poisson", "rate_per_s": 4},
            "requests": 40,
            "input_tokens": 700,
            "output_tokens": 40,
        },
    }
)


@pytest.fixture(scope="module")
def served():
    resolved = resolve(SCENARIO)
    return resolved.workload, simulate(resolved, keep_steps=True).record


def test_a_request_is_taken_up_between_two_steps_or_at_once(served):
    _, record = served
    came, taken = record.requests["arrival_ns"], taken_up_ns(record)
    ends = record.steps["start_ns"] + record.steps["duration_ns"]
    waits = taken > came
    assert 0 < waits.sum() < len(came)
    assert np.isin(taken[waits], ends).all()
    for at in came[~waits]:
        assert not ((record.steps["start_ns"] < at) & (at < ends)).any()
    assert (taken <= record.requests["first_token_ns"]).all()


def test_stamped_requests_came_half_a_step_before_in_their_order(served):
    load, record = served
    stamped = came_before(load, record)
    earlier = load.arrival_ns - stamped.arrival_ns
    assert (earlier >= 0).all()
    assert (np.diff(stamped.arrival_ns) >= 0).all()
    assert 0 < earlier.max() <= record.steps["duration_ns"].max()
    idle = taken_up_ns(record) == record.requests["arrival_ns"]
    later = np.minimum.accumulate(stamped.arrival_ns[::-1])[::-1]
    assert ((earlier == 0) | (later < load.arrival_ns))[idle].all()


def test_latencies_count_from_the_moment_of_taking_up():
    label = Label("a", "RTX-4090", "llama-3.1-8b", "vllm")
    plain, stamped = (
        play(ServedRun(label, SCENARIO, {}, client_overhead_s=0.0, taken_up=taken_up))
        for taken_up in (False, True)
    )
    assert stamped.simulated["ttft"].mean() < plain.simulated["ttft"].mean()
    assert stamped.simulated["ttft"].min() > 0.0
