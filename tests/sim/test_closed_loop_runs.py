"""Users who wait for their answers: all of their requests are served, each when its user has thought."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from membound.hwmodels.engine import load_engine
from membound.hwmodels.errors import MemboundError
from membound.sim.books.record import RunRecord
from membound.sim.run import simulate
from membound.sim.scenario import parse_scenario


def run(requests: int, *sets: str, **arrivals: Any) -> RunRecord:
    scenario = {
        "device": "h100_sxm",
        "model": "llama-3.2-1b",
        "kv_cache": {"max_model_len": 4096},
        "workload": {
            "arrivals": {"kind": "closed_loop", **arrivals},
            "input_tokens": {"kind": "uniform", "low": 1, "high": 2000},
            "output_tokens": {"kind": "uniform", "low": 1, "high": 40},
            "requests": requests,
        },
    }
    return simulate(parse_scenario(scenario, list(sets))).record


@settings(max_examples=15, deadline=None)
@given(
    requests=st.integers(1, 40),
    concurrency=st.integers(1, 12),
    think_time_s=st.sampled_from((0.0, 0.01, 0.3, 1e6)),
    think_time=st.sampled_from(("constant", "exponential")),
)
def test_every_request_is_served_when_its_user_has_thought(
    requests: int, concurrency: int, think_time_s: float, think_time: str
) -> None:
    record = run(requests, concurrency=concurrency, think_time_s=think_time_s, think_time=think_time)
    assert record.n_requests == requests
    arrivals, ends = record.requests["arrival_ns"], np.sort(record.requests["last_token_ns"])
    assert (arrivals[:concurrency] == 0).all()
    profile = load_engine("vllm-0.24")
    pause = round((profile.client_overhead_s + profile.client_turnaround_s) * 1e9)
    later = arrivals[concurrency:]
    if think_time == "constant":
        # The k-th request after the first round follows the k-th answer.
        pause += round(think_time_s * 1e9)
        assert (np.sort(later) == ends[: len(later)] + pause).all()
    else:
        assert (np.sort(later) >= ends[: len(later)] + pause).all()
    present = (arrivals <= arrivals[:, None]) & (record.requests["last_token_ns"] > arrivals[:, None])
    assert present.sum(axis=1).max() <= concurrency, "nobody asks twice at once"


def test_an_arrival_while_nothing_runs_is_served_at_once() -> None:
    record = run(60, concurrency=7, think_time_s=1000.0)
    assert record.n_requests == 60
    waited = record.requests["first_scheduled_ns"] - record.requests["arrival_ns"]
    assert waited[7:].max() < 1_000_000_000


def test_thinking_for_centuries_is_refused() -> None:
    with pytest.raises(MemboundError, match="146 years"):
        run(60, concurrency=7, think_time_s=1e9)
