"""Orders of waiting: first come, first served, and by a rank."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterator

from ..engine.request import Request


class FCFSQueue(deque[Request]):
    """First come, first served; a preempted request goes back to the front."""

    __slots__ = ()

    push = deque[Request].append
    requeue = deque[Request].appendleft

    def peek(self) -> Request:
        """Return the first request."""
        return self[0]

    def pop(self) -> Request:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Take the first request."""
        return self.popleft()


def by_priority(request: Request) -> float:
    """Rank by priority number, the lowest first."""
    return request.priority


class RankedQueue:
    """Lowest rank first, then earliest arrival, then lowest index; also for the preempted.

    Parameters
    ----------
    rank : what requests are ordered by; asked once, when a request enters
    """

    __slots__ = ("_entries", "_rank", "_ranks")

    def __init__(self, rank: Callable[[Request], float]) -> None:
        self._rank = rank
        self._ranks: dict[Request, float] = {}
        self._entries: list[tuple[float, int, int, Request]] = []

    def push(self, request: Request) -> None:
        """Enter at the request's rank."""
        rank = self._ranks[request] = self._rank(request)
        insort(self._entries, (rank, request.arrival_ns, request.index, request))

    requeue = push

    def peek(self) -> Request:
        """Return the first request."""
        return self._entries[0][3]

    def pop(self) -> Request:
        """Take the first request."""
        request = self._entries.pop(0)[3]
        del self._ranks[request]
        return request

    def remove(self, request: Request) -> None:
        """Take out a request wherever it stands."""
        entry = (self._ranks.pop(request), request.arrival_ns, request.index, request)
        del self._entries[bisect_left(self._entries, entry)]

    def rank(self, request: Request) -> float:
        """Return the rank at which a waiting request entered."""
        return self._ranks[request]

    def __len__(self) -> int:
        return len(self._entries)

    def __bool__(self) -> bool:
        return bool(self._entries)

    def __iter__(self) -> Iterator[Request]:
        return (entry[3] for entry in self._entries)
