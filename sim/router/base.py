"""What a router sees of a cluster, and what it decides."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol

if TYPE_CHECKING:
    from ..engine.request import Request


class ClusterView(Protocol):
    """What a router may know when a request arrives.

    Answers that leave at that very instant are counted as gone, and requests that came before it at that instant as
    sent; steps that are composed at that instant are not in it yet.
    """

    @property
    def outstanding(self) -> Sequence[int]:
        """Requests sent to each replica that have not ended [requests]; 0 for replicas that take none."""
        ...

    @property
    def ready(self) -> Sequence[int]:
        """Replicas that take requests, in ascending order; never empty."""
        ...

    def kv_usage(self, replica: int) -> float:
        """Return the share of a replica's KV pool that is in use."""
        ...


class Router(ABC):
    """Sends each request to one replica when it arrives.

    A policy is one file with one subclass. Whatever it decides must depend on nothing but the request, the
    view, what it decided before, and the arguments of its constructor.

    Attributes
    ----------
    name : the name used in scenario files
    """

    name: ClassVar[str]

    @abstractmethod
    def route(self, request: Request, view: ClusterView) -> int:
        """Return the replica that ``request``, just arrived, goes to."""

    def gone(self, replica: int) -> None:
        """Learn that a replica has lost all it knew (it failed, or was shut down)."""
        return


def least(candidates: Sequence[int], outstanding: Sequence[int], after: int) -> int:
    """Return the candidate with fewest outstanding requests; of equals, the first behind ``after`` in a circle.

    ``candidates`` are in ascending order.

    >>> least([0, 1, 2], [3, 1, 1], after=1), least([0, 1, 2], [3, 1, 1], after=2)
    (2, 1)
    """
    loads = loads_of(candidates, outstanding)
    fewest, behind = min(loads), bisect_right(candidates, after)
    try:
        return candidates[loads.index(fewest, behind)]
    except ValueError:
        return candidates[loads.index(fewest)]


def loads_of(candidates: Sequence[int], outstanding: Sequence[int]) -> Sequence[int]:
    """Return the outstanding requests of each candidate; all replicas are the usual ones."""
    if len(candidates) == len(outstanding):
        return outstanding
    return list(map(outstanding.__getitem__, candidates))
