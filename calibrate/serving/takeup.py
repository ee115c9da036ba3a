"""Arrivals that an engine stamps as it takes requests up, at the end of a step: they came while that step ran.

vLLM's loop empties its queue between two steps and stamps each request then (``QUEUED`` in ``Scheduler.add_request``);
the scheduler sees it in the same turn. Replayed as arrivals, half of such stamps would miss the turn by a moment and
wait a whole step more than they did.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ...sim.books.record import RunRecord
from ...sim.workload.workload import Workload

Int64Array = NDArray[np.int64]


def came_before(load: Workload, record: RunRecord) -> Workload:
    """Return a load whose requests came half a step before they were taken up, where a step ran then.

    Half a step is the mean of what is not known; it also lets the turn nearest to the stamp be the one that takes it.

    Parameters
    ----------
    load : arrivals as stamped, in their order
    record : of serving that load, with its steps
    """
    at = load.arrival_ns
    step, busy = _under_way(record, at)
    assert record.steps is not None
    came = np.maximum(np.where(busy, at - record.steps["duration_ns"][step] // 2, at), 0)
    in_order = np.minimum.accumulate(came[::-1])[::-1]
    return replace(load, arrival_ns=in_order.astype(np.int64))


def taken_up_ns(record: RunRecord) -> Int64Array:
    """Return when the engine took each request up: at the end of the step that ran as it came, or at once [ns].

    Parameters
    ----------
    record : of serving, with its steps
    """
    at = record.requests["arrival_ns"].astype(np.int64)
    step, busy = _under_way(record, at)
    assert record.steps is not None
    ends = record.steps["start_ns"][step] + record.steps["duration_ns"][step]
    return np.where(busy, ends, at).astype(np.int64)


def _under_way(record: RunRecord, at: Int64Array) -> tuple[Int64Array, NDArray[np.bool_]]:
    """Return the last step that began before some instants, and whether it still runs."""
    assert record.steps is not None
    starts, lasts = record.steps["start_ns"], record.steps["duration_ns"]
    step = np.searchsorted(starts, at, side="left") - 1
    known = np.maximum(step, 0)
    return known, (step >= 0) & (at < starts[known] + lasts[known])
