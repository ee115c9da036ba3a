"""Time cut into buckets: what steps lasted or moved, and what stood at one level until the next event.

What a step lasted or moved is spread over the buckets that it overlaps, in proportion, so that the buckets sum to the
run; of a level (queue, KV blocks) a bucket has its mean, least and largest value. Several replicas are added up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Columns = Mapping[str, Array]


def spread(steps: Columns, column: str, edges: Array) -> Array:
    """Return a column of steps summed by bucket; a step that overlaps several is cut in proportion.

    Parameters
    ----------
    steps : ``start_ns``, ``duration_ns``, ``column``, and ``replica`` where there are several
    edges : ends of the buckets, shape (buckets + 1,) [ns]
    """
    total = np.zeros(len(edges) - 1)
    for which in _replicas(steps):
        start, duration = steps["start_ns"][which], steps["duration_ns"][which]
        sums = np.concatenate(([0.0], np.cumsum(steps[column][which], dtype=np.float64)))
        times = np.stack((start, start + duration), axis=1).ravel()
        levels = np.stack((sums[:-1], sums[1:]), axis=1).ravel()
        total += np.diff(np.interp(edges, times, levels))
    return total


def levels(times: Array, values: Array, edges: Array) -> tuple[Array, Array, Array]:
    """Return least, mean and largest value of a level by bucket; it stands at ``values[i]`` from ``times[i]`` on.

    Parameters
    ----------
    times : in ascending order, the first not after ``edges[0]``, shape (n,) [ns]
    values : shape (n,)
    edges : ends of the buckets, shape (buckets + 1,) [ns]
    """
    until = np.append(times[1:], max(float(edges[-1]), float(times[-1])))
    integral = np.concatenate(([0.0], np.cumsum(values * (until - times), dtype=np.float64)))
    mean = np.diff(np.interp(edges, np.append(times, until[-1]), integral)) / np.diff(edges)
    first = np.maximum(np.searchsorted(times, edges[:-1], side="right") - 1, 0)
    last = np.maximum(np.searchsorted(times, edges[1:], side="left"), first + 1)
    pairs = np.stack((first, last), axis=1).ravel()
    padded = np.append(values, values[-1])
    return np.minimum.reduceat(padded, pairs)[::2], mean, np.maximum.reduceat(padded, pairs)[::2]


def step_level(steps: Columns, column: str) -> tuple[Array, Array]:
    """Return a level that stands during each step and is 0 between steps, summed over replicas: times and values."""
    changes: list[tuple[Array, Array]] = []
    for which in _replicas(steps):
        start, values = steps["start_ns"][which], steps[column][which]
        end = start + steps["duration_ns"][which]
        gap = np.append(end[:-1] < start[1:], True)
        times = np.concatenate((start, end[gap]))
        order = np.argsort(times, kind="stable")
        stands = np.concatenate((values, np.zeros(int(gap.sum()), dtype=values.dtype)))[order]
        changes.append((times[order], np.diff(stands, prepend=0)))
    return _summed(changes)


def _summed(changes: Sequence[tuple[Array, Array]]) -> tuple[Array, Array]:
    times = np.concatenate([each[0] for each in changes])
    order = np.argsort(times, kind="stable")
    return times[order], np.cumsum(np.concatenate([each[1] for each in changes])[order])


def _replicas(steps: Columns) -> list[Array]:
    if "replica" not in steps:
        return [np.arange(len(steps["start_ns"]))]
    return [np.flatnonzero(steps["replica"] == each) for each in np.unique(steps["replica"])]


def waiting_level(requests: Columns) -> tuple[Array, Array]:
    """Return the number of requests that have arrived and were never scheduled: times and values [requests]."""
    served = requests["first_scheduled_ns"] >= 0
    arrived, scheduled = requests["arrival_ns"][served], requests["first_scheduled_ns"][served]
    ones = np.ones(len(arrived), dtype=np.int64)
    return _summed([(np.sort(arrived), ones), (np.sort(scheduled), -ones)])
