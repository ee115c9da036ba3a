"""Static batching against continuous batching: what iteration-level scheduling was invented for."""

from __future__ import annotations

import numpy as np
import pytest
from membound.sim.workload.workload import ClosedLoopLoad

from .serving import S, Served, StepCost, poisson, serve

COST = StepCost(10_000_000, 100_000)
RATES = (0.5, 1, 2, 4, 6, 8)
COUNT = 400


def answers(seed: int = 0) -> list[int]:
    """Draw lognormal answer lengths: median 60 tokens, a few ten times that."""
    drawn = np.random.default_rng(seed).lognormal(np.log(60), 1.0, COUNT)
    return np.clip(drawn.astype(int), 1, 800).tolist()


def run(scheduler: str, rate: float) -> Served:
    return serve(
        answers(), COST, arrivals=poisson(rate, COUNT, 1), prompt=100, max_num_seqs=16, scheduler=scheduler
    )


def test_at_equal_latency_static_batching_serves_less() -> None:
    """The highest rate at which the mean answer takes no longer than a bound is lower, by a factor."""
    latency = {
        name: [run(name, rate).sojourns.mean() / S for rate in RATES] for name in ("static", "vllm_v1")
    }
    assert all(
        static > continuous for static, continuous in zip(latency["static"], latency["vllm_v1"], strict=True)
    )
    for bound in (4.0, 8.0):
        best = {
            name: max((rate for rate, mean in zip(RATES, means, strict=True) if mean <= bound), default=0)
            for name, means in latency.items()
        }
        assert best["vllm_v1"] >= 2 * best["static"] > 0, best


def test_under_full_load_static_batching_wastes_the_slots_of_short_answers() -> None:
    load = ClosedLoopLoad(32)
    end = {
        name: serve(answers(), COST, closed_loop=load, prompt=100, max_num_seqs=16, scheduler=name).last.max()
        for name in ("static", "vllm_v1")
    }
    assert end["static"] > 1.5 * end["vllm_v1"]


@pytest.mark.parametrize("answer", [1, 40])
def test_equal_answers_that_come_together_leave_nothing_to_gain(answer: int) -> None:
    static, continuous = (
        serve([answer] * 48, COST, arrivals=[0] * 48, prompt=100, max_num_seqs=16, scheduler=name)
        for name in ("static", "vllm_v1")
    )
    assert static.last.tolist() == continuous.last.tolist()
