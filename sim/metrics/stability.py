"""Whether a run reached a steady state, so that its mean latencies describe more than this one run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from ..books.record import RunRecord
from .figures import NS_PER_S
from .histogram import exact_sum

State = Literal["steady", "unstable", "unsettled", "batch"]
Times = npt.NDArray[np.int64]

MIN_REQUESTS = 20
GROWTH = 1.2
MIN_LINE = 4.0
STAYS = 4


@dataclass(frozen=True, slots=True)
class Stability:
    """Whether mean latencies of a run are those of a steady state.

    Attributes
    ----------
    state : ``steady``; ``unstable`` (arrivals beyond what the engine sustains); ``batch`` (all came at once);
        ``unsettled`` (too short or still changing)
    reason : one clause that says why; empty when steady
    """

    state: State
    reason: str = ""

    @property
    def steady(self) -> bool:
        """Whether mean latencies may be quoted as those of a steady state."""
        return self.state == "steady"


def stability(record: RunRecord) -> Stability:
    """Judge whether the run was in a steady state while requests arrived.

    The arrival period (first to last arrival) is cut into quarters. The *line* is the number of requests that
    arrived and were not yet scheduled, *present* the number that arrived and had not finished. In this order:

    1. batch: the period has no length.
    2. unsettled: fewer than 20 requests were served.
    3. unstable: the line never emptied in the second half of the period, and its time average in the last
       quarter is at least 4 requests and at least 1.2 times that of the third (linear growth from zero gives
       1.4). By conservation, requests then came faster than the engine took them in; both rates are quoted.
    4. unsettled: the line never emptied in the second half, and shrank by 1.2 (an earlier burst not cleared).
    5. unsettled: requests stay, on average, longer than a quarter of the period.
    6. unsettled: present grew from the third quarter to the last by 1.2, by more than three standard
       deviations of Poisson counts, and by 1.2 relative to arrivals (by Little's law, requests stay longer).

    A load just below what the engine sustains can look unstable in a short run (queues near saturation forget
    slowly); it is then right not to quote its means either.
    """
    requests = record.requests
    served = requests["first_scheduled_ns"] >= 0
    arrival: Times = requests["arrival_ns"][served]
    if arrival.size == 0:
        return Stability("unsettled", "no request was served")
    order = np.argsort(arrival, kind="stable")
    arrival = arrival[order]
    scheduled: Times = requests["first_scheduled_ns"][served][order]
    last: Times = requests["last_token_ns"][served][order]
    finished: Times = np.where(last >= 0, last, record.end_ns)
    return _judge(arrival, scheduled, finished)


def _judge(arrival: Times, scheduled: Times, finished: Times) -> Stability:
    """Apply the rules of ``stability`` to the times of the served requests, in order of arrival [ns]."""
    n, start, stop = arrival.size, int(arrival[0]), int(arrival[-1])
    if start == stop and n > 1:
        return Stability(
            "batch", f"all {n} requests arrived at once, so latencies are those of draining a batch"
        )
    if n < MIN_REQUESTS:
        return Stability("unsettled", f"only {n} requests were served")
    cuts = [start + (stop - start) * i // 4 for i in range(5)]
    third, fourth = (_mean_present(arrival, scheduled, *cuts[i : i + 2]) for i in (2, 3))
    queued = not _emptied(arrival, scheduled, cuts[2], stop)
    if queued and fourth >= max(MIN_LINE, GROWTH * third):
        return Stability("unstable", _overload(arrival, scheduled, cuts[2], stop))
    if queued and third >= max(MIN_LINE, GROWTH * fourth):
        return Stability("unsettled", "a line from an earlier burst had not cleared when arrivals ended")
    return _settled(arrival, finished, cuts)


def _settled(arrival: Times, finished: Times, cuts: list[int]) -> Stability:
    """Judge by how long requests stay, given the four quarters of the arrival period [ns]."""
    period, stay = cuts[4] - cuts[0], exact_sum(finished - arrival) / arrival.size
    if stay * STAYS > period:
        ratio = f"{_seconds(period)}, only {period / stay:.1f} times what a request stays ({_seconds(stay)})"
        return Stability("unsettled", f"arrivals lasted {ratio}")
    third, fourth = (_mean_present(arrival, finished, *cuts[i : i + 2]) for i in (2, 3))
    came = [int(np.count_nonzero((arrival >= cuts[i]) & (arrival <= cuts[i + 1]))) for i in (2, 3)]
    grew = fourth >= GROWTH * third and (fourth - third) ** 2 > 9 * (third + fourth)
    if grew and fourth * came[0] >= GROWTH * third * came[1]:
        change = f"from {third:.0f} to {fourth:.0f} between the last two quarters of the arrivals"
        return Stability("unsettled", f"the number of requests in service was still growing, {change}")
    return Stability("steady")


def _overload(arrival: Times, scheduled: Times, since: int, until: int) -> str:
    """Say how much faster requests came than they were taken in; the line stands from ``since`` on [ns]."""
    came = int(np.count_nonzero(arrival > since))
    drained = int(scheduled.max())
    taken = int(np.count_nonzero(scheduled > since))
    left = int(np.count_nonzero(scheduled > until))
    arrive, sustained = _per_s(came, until - since), _per_s(taken, drained - since)
    rates = f"{arrive} requests/s arrive and {sustained}/s is what this engine sustains"
    return f"{rates}; the line never empties and is {left} requests long when arrivals end"


def _per_s(count: int, ns: int) -> str:
    rate = count * NS_PER_S / ns
    return f"{rate:.0f}" if rate >= 100 else f"{rate:.3g}"


def _mean_present(begin: Times, end: Times, since: int, until: int) -> float:
    """Return the time average over ``since..until`` of how many intervals ``begin..end`` are open [ns]."""
    overlap = np.minimum(end, until) - np.maximum(begin, since)
    return exact_sum(overlap[overlap > 0]) / (until - since)


def _emptied(begin: Times, end: Times, since: int, until: int) -> bool:
    """Return whether at some moment of ``since..until`` no interval is open; ``begin`` ascends [ns]."""
    covered = np.maximum.accumulate(np.maximum(end, since))
    gaps = begin[1:] > covered[:-1]
    inside = (begin[1:] > since) & (covered[:-1] < until)
    return bool(begin[0] > since) or bool((gaps & inside).any()) or int(covered[-1]) < until


def _seconds(ns: float) -> str:
    return f"{ns / NS_PER_S:.3g} s"
