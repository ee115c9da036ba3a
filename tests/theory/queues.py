"""Closed forms of queueing theory, and the statistical error of what a simulation says beside them.

Times in any one unit; ``rate`` is the arrival rate [1/time], ``mean`` the mean service time [time].
Source of the formulas: Kleinrock, *Queueing Systems* I (1975) for the waiting times, II (1976), 4.4, for
processor sharing.
"""

import math

import numpy as np


def utilisation(rate, mean, servers=1):
    """Return the offered load of each server; below 1 for a queue that settles."""
    load = rate * mean / servers
    if not 0.0 <= load < 1.0:
        raise ValueError(f"load of {load:g} per server; allowed: from 0 to below 1")
    return load


def mg1_wait(rate, mean, variance):
    """Return the mean wait before service, one server, first come first served (Pollaczek-Khinchine)."""
    return rate * (variance + mean**2) / (2.0 * (1.0 - utilisation(rate, mean)))


def mm1_wait(rate, mean):
    """Return the mean wait before service with exponential service: rho / (1 - rho) service times."""
    return mg1_wait(rate, mean, mean**2)


def md1_wait(rate, mean):
    """Return the mean wait before service with constant service: half that of M/M/1."""
    return mg1_wait(rate, mean, 0.0)


def mmc_wait(rate, mean, servers):
    """Return the mean wait before service with several servers and one line (Erlang C)."""
    rho = utilisation(rate, mean, servers)
    offered = rate * mean
    blocked = 1.0
    for n in range(1, servers + 1):
        blocked = offered * blocked / (n + offered * blocked)
    waits = blocked / (1.0 - rho * (1.0 - blocked))
    return waits * mean / (servers * (1.0 - rho))


def round_robin_wait(rate, mean, servers):
    """Return the mean wait where each of several exponential servers gets every n-th arrival (GI/M/1, Erlang gaps).

    The chance that an arrival waits is the root of s = (a / (a + (1 - s) / mean)) ** n, a the rate of all arrivals.
    """
    rho = utilisation(rate, mean, servers)
    waits = rho
    for _ in range(10_000):
        waits = (rate / (rate + (1.0 - waits) / mean)) ** servers
    return mean * waits / (1.0 - waits)


def two_choices_wait(rate, mean, servers):
    """Return the mean wait where each arrival joins the shorter of two lines, of many (Mitzenmacher, 2001)."""
    rho = utilisation(rate, mean, servers)
    return mean * sum(rho ** (2.0**i - 2.0) for i in range(2, 12))


def ps_sojourn(rate, mean, own=None, servers=1):
    """Return the mean time in a processor-sharing system, of all or of a customer of length ``own``.

    With ``servers`` s each of n customers gets min(1, s/n), so that the number present moves as in M/M/s. The
    distribution of lengths matters only through its mean; a customer's time is proportional to its length.
    """
    stretch = (mmc_wait(rate, mean, servers) + mean) / mean
    return stretch * (mean if own is None else own)


def mean_and_error(values):
    """Return mean and standard error of independent values (one a seed, or one a batch)."""
    values = np.asarray(values, dtype=float)
    return values.mean(), values.std(ddof=1) / math.sqrt(len(values))


def batch_means(values, batches=20):
    """Return mean and standard error of a stationary series, from batches far longer than its memory."""
    return mean_and_error(
        [batch.mean() for batch in np.array_split(np.asarray(values, dtype=float), batches)]
    )


def assert_agrees(mean, error, theory, *, sigmas=3.0, resolution=0.05):
    """Assert that theory lies within some standard errors, and that these are small enough to tell."""
    assert error <= resolution * theory, (
        f"error {error:.4g} is above {resolution:.1%} of {theory:.4g}: run longer"
    )
    assert abs(mean - theory) <= sigmas * error, f"{mean:.4g} +- {error:.2g}, theory {theory:.4g}"


def one_server_waits(arrivals, services):
    """Return each customer's wait before service, one server, first come first served (Lindley's recursion).

    Exact for the very path that was simulated: integers in, integers out.
    """
    waits, free = [], arrivals[0]
    for arrival, service in zip(arrivals, services, strict=True):
        begin = max(arrival, free)
        waits.append(begin - arrival)
        free = begin + service
    return waits


def priority_waits(rates, means, seconds):
    """Return the mean wait of each class, one server, the first class first, nobody interrupted (Cobham).

    ``seconds`` are second moments of the service times [time squared].
    """
    residual = sum(rate * second for rate, second in zip(rates, seconds, strict=True)) / 2.0
    waits, before = [], 0.0
    for rate, mean in zip(rates, means, strict=True):
        upto = before + utilisation(rate, mean)
        waits.append(residual / ((1.0 - before) * (1.0 - upto)))
        before = upto
    return waits
