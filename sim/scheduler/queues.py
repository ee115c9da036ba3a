"""Orders of waiting: first come, first served, and by priority."""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterator

from ..request import Request


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


class PriorityQueue:
    """Lowest priority number first, then earliest arrival, then lowest index; also for the preempted."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: list[tuple[int, int, int, Request]] = []

    @staticmethod
    def rank(request: Request) -> tuple[int, int, int]:
        """Return the key requests are ordered by."""
        return request.priority, request.arrival_ns, request.index

    def push(self, request: Request) -> None:
        """Enter at the request's rank."""
        insort(self._entries, (*self.rank(request), request))

    requeue = push

    def peek(self) -> Request:
        """Return the first request."""
        return self._entries[0][3]

    def pop(self) -> Request:
        """Take the first request."""
        return self._entries.pop(0)[3]

    def remove(self, request: Request) -> None:
        """Take out a request wherever it stands."""
        self._entries.remove((*self.rank(request), request))

    def __len__(self) -> int:
        return len(self._entries)

    def __bool__(self) -> bool:
        return bool(self._entries)

    def __iter__(self) -> Iterator[Request]:
        return (entry[3] for entry in self._entries)
