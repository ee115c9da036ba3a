"""Replicas that fail and come back: when, for how long, and what it cost."""

from __future__ import annotations

from collections.abc import Sequence
from math import log1p
from typing import TYPE_CHECKING, final

from ...hwmodels.tier import host_link
from ..fields import ScenarioError
from ..random import uniform_one

if TYPE_CHECKING:
    from ..scenario.cluster import Failures
    from .replica import Replica

NS_PER_S = 1_000_000_000
MOST_FAILURES = 100_000
"""Of one replica, after which a run is taken for one that does not end: a prompt may never be computed in one go."""


@final
class Outages:
    """When each replica fails, and how long it takes no requests; also the books of what happened.

    Drawn: the time a replica is up is exponential with mean ``mtbf``, the k-th of replica r being a number of its own
    (`sim.random`), so that no other setting moves it; then it is down for ``mttr`` and the loading of its weights.

    Approximation: replicas fail one by one, never several for one cause; a repair always takes the same time.

    Parameters
    ----------
    asked : the rules
    seed : of the draws
    loading_ns : what loading its weights takes each replica [ns]

    Attributes
    ----------
    spans : of each replica, from when to when it took no requests [ns]
    requeued : requests that each replica gave back when it failed
    """

    def __init__(self, asked: Failures, seed: int, loading_ns: Sequence[int]) -> None:
        self.asked, self.seed, self.loading_ns = asked, seed, loading_ns
        self.spans: list[list[tuple[int, int]]] = [[] for _ in loading_ns]
        self.requeued = [0] * len(loading_ns)
        self._drawn = [0] * len(loading_ns)

    def next(self, replica: int, up_ns: int) -> tuple[int, int] | None:
        """Return when a replica that is up from ``up_ns`` on fails next, and for how long; None: never again [ns]."""
        drawn, mttr_s = self._drawn[replica], self.asked.mttr
        self._drawn[replica] += 1
        if drawn >= MOST_FAILURES:
            raise ScenarioError(
                f"cluster.failures: replica {replica} has failed {MOST_FAILURES:,} times and the load is not served; "
                "allowed: replicas that stay up for long enough to get on with their requests"
            )
        if self.asked.mtbf is not None:
            lived = -log1p(-uniform_one(self.seed, "failures", replica, drawn)) * self.asked.mtbf
            return up_ns + max(round(lived * NS_PER_S), 1), round(mttr_s * NS_PER_S) + self.loading_ns[
                replica
            ]
        given = sorted((each.after, each.lasts) for each in self.asked.at if each.replica == replica)
        if drawn >= len(given):
            return None
        after, lasts = given[drawn]
        return max(round(after * NS_PER_S), up_ns + (drawn > 0)), round(lasts * NS_PER_S)

    def down_ns(self, replica: int, start_ns: int, end_ns: int) -> int:
        """Return how long a replica took no requests within a span [ns]."""
        return sum(max(min(up, end_ns) - max(down, start_ns), 0) for down, up in self.spans[replica])

    def failures(self, replica: int, end_ns: int) -> int:
        """Return how often a replica failed up to the end of the run."""
        return sum(down <= end_ns for down, _ in self.spans[replica])


def outages_of(asked: Failures, seed: int, replicas: Sequence[Replica]) -> Outages:
    """Return the failures of replicas.

    Raises
    ------
    TierError : no host link is known over which weights could be loaded
    """
    return Outages(asked, seed, [0 if asked.mtbf is None else loading_ns(replica) for replica in replicas])


def loading_ns(replica: Replica) -> int:
    """Return what loading the weights takes: those of the fullest GPU over its host link, all GPUs at once [ns]."""
    most = max(stage.weights.total for stage in replica.kind.pool.stages)
    return round(most / host_link(replica.kind.resolved.device) * NS_PER_S)
