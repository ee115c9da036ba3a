"""Confidence intervals of one run's means cover what theory says the mean is, as often as they promise."""

import numpy as np
import pytest
from membound.sim.metrics.figures import Unknown
from membound.sim.metrics.steady import Interval, mean_interval, percentile_interval, warmup

from .queues import md1_wait, mm1_wait, mmc_wait

REPLICATIONS = 200
CUSTOMERS = 20_000


def one_server_waits(arrivals, services):
    """Return the waits of a first-come-first-served queue: Lindley's recursion as a reflected random walk."""
    walk = np.concatenate(([0.0], np.cumsum(services[:-1] - np.diff(arrivals))))
    return walk - np.minimum.accumulate(walk)


def several_servers_waits(arrivals, services, servers):
    """Return the waits of a first-come-first-served queue with several servers."""
    free, waits = np.zeros(servers), np.empty(len(arrivals))
    for i, (arrival, service) in enumerate(zip(arrivals, services, strict=True)):
        first = int(free.argmin())
        waits[i] = max(free[first] - arrival, 0.0)
        free[first] = arrival + waits[i] + service
    return waits


def poisson(rng, rate, n=CUSTOMERS):
    return np.cumsum(rng.exponential(1.0 / rate, n))


QUEUES = {
    "M/M/1 at 50 %": (
        lambda rng: one_server_waits(poisson(rng, 0.5), rng.exponential(1.0, CUSTOMERS)),
        mm1_wait(0.5, 1.0),
    ),
    "M/M/1 at 80 %": (
        lambda rng: one_server_waits(poisson(rng, 0.8), rng.exponential(1.0, CUSTOMERS)),
        mm1_wait(0.8, 1.0),
    ),
    "M/D/1 at 80 %": (
        lambda rng: one_server_waits(poisson(rng, 0.8), np.ones(CUSTOMERS)),
        md1_wait(0.8, 1.0),
    ),
    "M/M/4 at 75 %": (
        lambda rng: several_servers_waits(poisson(rng, 3.0, 8000), rng.exponential(1.0, 8000), 4),
        mmc_wait(3.0, 1.0, 4),
    ),
}


@pytest.mark.parametrize("queue", QUEUES)
def test_95_percent_intervals_of_mean_waits_cover_theory_90_to_98_times_in_100(queue):
    waits_of, theory = QUEUES[queue]
    covered = reported = 0
    for seed in range(REPLICATIONS):
        waits = np.asarray(waits_of(np.random.default_rng(seed)))
        found = mean_interval(waits[warmup(waits) :])
        if isinstance(found, Interval):
            reported += 1
            covered += found.low <= theory <= found.high
    assert reported >= 0.95 * REPLICATIONS
    assert 0.90 <= covered / reported <= 0.98


def test_intervals_of_percentiles_cover_those_of_the_exponential_tail():
    """P(wait > t) = rho exp(-(1 - rho) t) in M/M/1."""
    rho, covered = 0.5, 0
    theory = np.log(rho / 0.1) / (1.0 - rho)
    for seed in range(REPLICATIONS):
        rng = np.random.default_rng(seed)
        waits = np.asarray(one_server_waits(poisson(rng, rho), rng.exponential(1.0, CUSTOMERS)))
        found = percentile_interval(waits, 90.0, mean_interval(waits))
        assert isinstance(found, Interval)
        covered += found.low <= theory <= found.high
    assert 0.90 <= covered / REPLICATIONS <= 0.98


def test_a_ramp_is_cut_and_noise_is_not():
    rng = np.random.default_rng(1)
    noise = rng.normal(10.0, 1.0, 4000)
    ramp = noise.copy()
    ramp[:400] -= np.linspace(10.0, 0.0, 400)
    assert warmup(noise) == 0
    assert 250 <= warmup(ramp) <= 500


def test_too_few_independent_observations_give_a_reason_and_no_interval():
    rng = np.random.default_rng(2)
    walk = np.cumsum(rng.normal(0.0, 1.0, 4000))
    for series in (walk, np.arange(50.0)):
        found = mean_interval(series)
        assert isinstance(found, Unknown)
        assert "confidence interval" in found.reason
    few = rng.exponential(1.0, 300)
    tail = percentile_interval(few, 99.0, mean_interval(few))
    assert isinstance(tail, Unknown)
    assert "beyond the percentile" in tail.reason


def test_a_constant_series_is_known_exactly():
    found = mean_interval(np.full(1000, 3.0))
    assert isinstance(found, Interval)
    assert (found.low, found.estimate, found.high) == (3.0, 3.0, 3.0)
