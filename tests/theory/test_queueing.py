"""The formulas that simulations are held against, themselves held against Lindley's recursion."""

import numpy as np
import pytest

from .queues import (
    assert_agrees,
    batch_means,
    md1_wait,
    mean_and_error,
    mg1_wait,
    mm1_wait,
    mmc_wait,
    one_server_waits,
    ps_sojourn,
)

CUSTOMERS = 20_000
WARM_UP = 1_000


def waits(services, load, seed):
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(1.0 / load, CUSTOMERS))
    return one_server_waits(arrivals.tolist(), services(rng).tolist())[WARM_UP:]


def exponential(rng):
    return rng.exponential(1.0, CUSTOMERS)


def deterministic(rng):
    return np.ones(CUSTOMERS)


def two_lengths(rng):
    """Return nine short services to one long: mean 1, variance 4."""
    return np.where(rng.random(CUSTOMERS) < 0.9, 1.0 - 2.0 / 3.0, 1.0 + 6.0)


@pytest.mark.parametrize(
    ("services", "theory"),
    [
        (exponential, mm1_wait(0.6, 1.0)),
        (deterministic, md1_wait(0.6, 1.0)),
        (two_lengths, mg1_wait(0.6, 1.0, 4.0)),
    ],
)
def test_mean_wait_of_one_server_is_that_of_lindleys_recursion(services, theory):
    by_seed = [np.mean(waits(services, 0.6, seed)) for seed in range(8)]
    assert_agrees(*mean_and_error(by_seed), theory)


def test_batch_means_of_one_long_run_agree_as_well():
    assert_agrees(*batch_means(waits(exponential, 0.5, 1)), mm1_wait(0.5, 1.0), resolution=0.1)


def test_one_server_waits_worked_by_hand():
    # Served 0-10, 10-14 (came at 3), 14-15 (at 4), 20-22 (at 20).
    assert one_server_waits([0, 3, 4, 20], [10, 4, 1, 2]) == [0, 7, 10, 0]


def test_known_values():
    assert mm1_wait(0.5, 1.0) == pytest.approx(1.0)
    assert md1_wait(0.5, 1.0) == pytest.approx(0.5)
    assert mmc_wait(0.9, 1.0, 1) == pytest.approx(mm1_wait(0.9, 1.0))
    # Erlang C with 2 servers and 1 Erlang: a third have to wait, for 1 / (2 - 1) on average.
    assert mmc_wait(1.0, 1.0, 2) == pytest.approx(1 / 3)
    assert ps_sojourn(0.5, 1.0, own=3.0) == pytest.approx(6.0)


def test_a_queue_that_does_not_settle_has_no_mean():
    with pytest.raises(ValueError, match="load of 1 per server"):
        mm1_wait(1.0, 1.0)


def test_batch_means_cover_the_truth_about_as_often_as_they_say():
    rng = np.random.default_rng(3)
    hits = 0
    for _ in range(300):
        noise = rng.normal(size=2000)
        mean, error = batch_means(np.convolve(noise, np.ones(5) / 5, "valid"))
        hits += abs(mean) <= 2.09 * error  # 95 % of Student's t with 19 degrees of freedom
    assert 0.90 <= hits / 300 <= 0.98
