"""Routers on M/M/n-like loads: the mean waits that theory knows, and their order."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from .queues import (
    assert_agrees,
    batch_means,
    mm1_wait,
    mmc_wait,
    round_robin_wait,
    two_choices_wait,
)
from .serving import S, StepCost, poisson, serve_behind

STEP = 1_000_000  # 1 ms
MEAN = 100  # output tokens, without memory: 0.1 s of service, exponential but for the grain of a step
SERVICE = MEAN * STEP / S
COUNT = 24_000


@cache
def wait_s(router: str, replicas: int, load: float, seed: int = 0) -> tuple[float, float]:
    """Return the mean wait and its standard error [s]; the load is the same for every router."""
    rate = load * replicas / SERVICE
    answers = np.random.default_rng(1000).geometric(1 / MEAN, COUNT).tolist()
    served = serve_behind(router, replicas, answers, StepCost(STEP), poisson(rate, COUNT, 7))
    return batch_means(served.waits[COUNT // 20 :] / S)


def test_random_makes_a_line_of_its_own_of_every_replica() -> None:
    rate = 0.6 / SERVICE
    assert_agrees(*wait_s("random", 8, 0.6), mm1_wait(rate, SERVICE), resolution=0.1)


@pytest.mark.parametrize("replicas", [2, 8])
def test_round_robin_gives_every_replica_gaps_of_erlang(replicas: int) -> None:
    rate = 0.6 * replicas / SERVICE
    theory = round_robin_wait(rate, SERVICE, replicas)
    assert_agrees(*wait_s("round_robin", replicas, 0.6), theory, resolution=0.1)


def test_the_better_of_two_of_many_waits_as_mitzenmacher_says() -> None:
    rate = 0.7 * 40 / SERVICE
    theory = two_choices_wait(rate, SERVICE, 40)
    mean, error = wait_s("power_of_two", 40, 0.7)
    assert error < 0.05 * theory
    # That theory is of infinitely many replicas; of forty the wait is longer by a few parts in a hundred.
    assert theory - 3 * error <= mean <= 1.05 * theory + 3 * error


@pytest.mark.parametrize("replicas", [4, 16])
def test_routers_come_in_the_known_order(replicas: int) -> None:
    """One line < shortest queue < better of two < in turn < at random."""
    names = ("least_outstanding", "power_of_two", "round_robin", "random")
    waits = [wait_s(name, replicas, 0.8)[0] for name in names]
    assert waits == sorted(waits)
    assert waits[0] > mmc_wait(0.8 * replicas / SERVICE, SERVICE, replicas) * 0.9
    assert waits[1] < 0.6 * waits[3]
