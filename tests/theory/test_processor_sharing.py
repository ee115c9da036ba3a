"""The shared device against the closed forms of M/G/1 processor sharing.

Works arrive as a Poisson process and ask for all of one resource, so n active works each advance at 1/n.
Then the mean time in the system is E[S] / (1 - rho) whatever the distribution of the lengths, and a work
of length x stays x / (1 - rho) on average. Asking for half of the resource, each advances at min(1, 2/n):
two servers.
"""

from functools import cache

import numpy as np
import pytest
import simpy
from membound.hwmodels.steptypes import Phase
from membound.sim.device.resources import SharedDevice

from .queues import assert_agrees, mean_and_error, ps_sojourn

MEAN_NS = 1_000_000
SEEDS = range(12)
WORKS = 3000
WARM_UP = 300


def exponential(rng, n):
    return rng.exponential(1.0, n)


def deterministic(rng, n):
    return np.ones(n)


def hyperexponential(rng, n):
    """Return lengths of mean 1 and squared coefficient of variation 4: many short, few long, equal loads."""
    p = 0.5 * (1.0 + np.sqrt(3.0 / 5.0))
    short = rng.random(n) < p
    return np.where(short, rng.exponential(0.5 / p, n), rng.exponential(0.5 / (1.0 - p), n))


LENGTHS = [exponential, deterministic, hyperexponential]


@cache
def sojourns(lengths, load, share, seed):
    """Return own length and time in the system [ns] of the works of one run, in order of arrival."""
    rng = np.random.default_rng([LENGTHS.index(lengths), seed])
    own = np.maximum(1, np.rint(lengths(rng, WORKS) * MEAN_NS)).astype(int).tolist()
    gaps = np.rint(rng.exponential(MEAN_NS * share / load, WORKS)).astype(int).tolist()
    env = simpy.Environment()
    device = SharedDevice(env, {"hbm": 1.0})
    works = []

    def arrivals():
        for gap, ns in zip(gaps, own, strict=True):
            yield env.timeout(gap)
            works.append(device.submit([Phase("work", ns * 1e-9, {"hbm": share * ns * 1e-9})], ns))

    env.process(arrivals())
    env.run()
    assert device.used()["hbm"] == pytest.approx(share * sum(own) * 1e-9)
    times = [work.end_ns - work.start_ns for work in works]
    return np.array(own[WARM_UP:]), np.array(times[WARM_UP:])


@pytest.mark.parametrize("lengths", LENGTHS)
def test_mean_time_in_the_system_depends_on_the_mean_length_only(lengths):
    load = 0.5
    by_seed = [sojourns(lengths, load, 1.0, seed)[1].mean() for seed in SEEDS]
    assert_agrees(*mean_and_error(by_seed), ps_sojourn(load / MEAN_NS, MEAN_NS))
    assert ps_sojourn(load / MEAN_NS, MEAN_NS) == pytest.approx(MEAN_NS / (1 - load))


@pytest.mark.parametrize("lengths", [exponential, hyperexponential])
@pytest.mark.parametrize("between", [(0.05, 0.5), (0.5, 2.0), (2.0, 8.0)])
def test_a_work_stays_in_proportion_to_its_length(lengths, between):
    load = 0.5
    shortest, longest = (x * MEAN_NS for x in between)
    stretch = []
    for seed in SEEDS:
        own, times = sojourns(lengths, load, 1.0, seed)
        chosen = (own >= shortest) & (own < longest)
        stretch.append(times[chosen].sum() / own[chosen].sum())
    assert_agrees(*mean_and_error(stretch), ps_sojourn(load / MEAN_NS, MEAN_NS, own=1.0))


@pytest.mark.parametrize("lengths", LENGTHS)
def test_works_that_ask_for_half_share_like_two_servers(lengths):
    load = 0.6
    by_seed = [sojourns(lengths, load, 0.5, seed)[1].mean() for seed in SEEDS]
    theory = ps_sojourn(2 * load / MEAN_NS, MEAN_NS, servers=2)
    assert_agrees(*mean_and_error(by_seed), theory)
    assert theory == pytest.approx(MEAN_NS / (1 - load**2))
