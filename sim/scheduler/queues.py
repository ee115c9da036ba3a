"""Orders of waiting: first come, first served, and by priority."""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterator

from ..request import Request


class FCFSQueue:
    """First come, first served; a preempted request goes back to the front."""

    __slots__ = ("_requests",)

    def __init__(self) -> None:
        self._requests: deque[Request] = deque()

    def push(self, request: Request) -> None:
        """Enter at the back."""
        self._requests.append(request)

    def requeue(self, request: Request) -> None:
        """Enter at the front."""
        self._requests.appendleft(request)

    def peek(self) -> Request:
        """Return the first request."""
        return self._requests[0]

    def pop(self) -> Request:
        """Take the first request."""
        return self._requests.popleft()

    def remove(self, request: Request) -> None:
        """Take out a request wherever it stands."""
        self._requests.remove(request)

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)


class PriorityQueue:
    """Lowest priority number first, then earliest arrival, then lowest index; preempted requests keep their rank."""

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

    def __iter__(self) -> Iterator[Request]:
        return (entry[3] for entry in self._entries)
