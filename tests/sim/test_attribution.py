"""A request's time by cause adds up to its time."""

from __future__ import annotations

import numpy as np
import pytest
from membound.sim.run import simulate
from membound.sim.scenario import parse_scenario

SCENARIO = {
    "device": "h100_sxm",
    "model": "qwen3-8b",
    "kv_cache": {"max_model_len": 4096, "num_gpu_blocks_override": 300},
    "workload": {
        "arrivals": {"kind": "poisson", "rate_per_s": 12},
        "input_tokens": {"kind": "lognormal", "p50": 300, "sigma": 0.8, "min": 8, "max": 2000},
        "output_tokens": {"kind": "lognormal", "p50": 60, "sigma": 0.7, "min": 1, "max": 400},
        "requests": 300,
    },
}


@pytest.mark.parametrize("asynchronous", [False, True])
def test_causes_of_a_request_sum_to_its_decode_time_and_are_part_of_its_ttft(asynchronous: bool) -> None:
    """Every step between first and last token is charged in full; what is left of TTFT is waiting."""
    scenario = parse_scenario(SCENARIO, [f"scheduler.async_scheduling={str(asynchronous).lower()}"])
    record = simulate(scenario, keep_steps=True).record
    requests, causes = record.requests, record.per_request_causes
    assert causes is not None
    assert record.kv["preemptions"] > 0
    decode = requests["last_token_ns"] - requests["first_token_ns"]
    assert np.array_equal(causes["decode"].sum(axis=1), decode)
    waiting = requests["first_token_ns"] - requests["arrival_ns"] - causes["ttft"].sum(axis=1)
    assert (waiting >= 0).all()
    scheduled_late = requests["first_scheduled_ns"] - requests["arrival_ns"]
    assert (waiting >= scheduled_late).all()
    if not asynchronous:
        assert np.array_equal(waiting, scheduled_late)
