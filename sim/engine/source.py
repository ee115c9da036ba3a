"""Brings requests to the engine when they are due: arrivals fixed beforehand, or following completions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from ..clock import ARRIVALS, LATE, Call, is_late
from ..fields import WorkloadError
from ..workload.workload import LATEST_NS
from .request import Request

if TYPE_CHECKING:
    import simpy

    from ..clock import Clock
    from ..workload.workload import ClosedLoopLoad, Follows


class Source:
    """Delivers requests in the order of their arrival.

    Whoever composes a step calls ``deliver`` first, so that a request that arrives at that very instant is
    seen whatever SimPy does first.

    Parameters
    ----------
    env : the clock [ns]
    requests : all requests; their order is the order of arrival, or of the closed loop's users
    submit : where a request goes when it is due
    closed_loop : how arrivals follow completions; None if they are fixed
    follows : which requests wait for which answers; None if none does
    in_turn : several engines share the clock, so that requests come when all that ends at their instant has
    """

    def __init__(
        self,
        env: Clock,
        requests: Iterator[Request],
        submit: Callable[[Request], None],
        closed_loop: ClosedLoopLoad | None = None,
        follows: Follows | None = None,
        *,
        in_turn: bool = False,
    ) -> None:
        self.env = env
        self.requests = requests
        self.submit = submit
        self.closed_loop = closed_loop
        self.follows = follows
        self.in_turn = in_turn
        self.submitted = 0
        self._held: dict[int, Request] = {}
        self._awaited: dict[int, int] = {}
        """Index of an answer to when it came (-1: not yet), where a request that was not drawn yet waits for it."""
        if follows is not None:
            self._awaited = dict.fromkeys(follows.after[follows.after >= 0].tolist(), -1)
        self._due: list[tuple[int, int, Request]] = []
        self._waking_ns: int | None = None
        for _ in range(1 if closed_loop is None else closed_loop.concurrency):
            self._draw()
        self._await()

    def next_arrival_ns(self) -> int | None:
        """When the next request arrives, as far as is known; None if nothing is due [ns]."""
        return self._due[0][0] if self._due else None

    def deliver(self, now: int) -> None:
        """Submit every request that is due by ``now``."""
        due = self._due
        while due and due[0][0] <= now:
            request = heappop(due)[2]
            if self.closed_loop is None and (self.follows is None or not self._waited(request)):
                self._draw()
            self.submitted += 1
            self.submit(request)

    def _waited(self, request: Request) -> bool:
        """Tell whether a request was sent after another's answer."""
        return self.follows is not None and self.follows.after[request.index] >= 0

    def finished(self, request: Request) -> None:
        """Learn that a request has ended: who waited for its answer sends the next, or a user begins another."""
        if self.follows is None and self.closed_loop is None:
            return
        ended = request.last_token_ns if request.last_token_ns >= 0 else self.env.now
        if request.index in self._held:
            self._send(self._held.pop(request.index), ended)
            self._await()
        elif request.index in self._awaited:
            self._awaited[request.index] = ended
        elif self.closed_loop is not None and self._draw(ended):
            self._await()

    def _send(self, request: Request, ended_ns: int) -> None:
        """Let a request come after the answer that it waited for."""
        assert self.follows is not None
        request.arrival_ns = ended_ns + int(self.follows.pause_ns[request.index])
        heappush(self._due, (request.arrival_ns, request.index, request))

    def _hold(self, request: Request) -> None:
        """Keep a request until the answer it waits for is there."""
        assert self.follows is not None
        after = int(self.follows.after[request.index])
        ended = self._awaited.pop(after)
        if ended < 0:
            self._held[after] = request
        else:
            self._send(request, ended)

    def _draw(self, ended_ns: int | None = None) -> bool:
        request = next(self.requests, None)
        while self.follows is not None and request is not None and self._waited(request):
            self._hold(request)
            request = next(self.requests, None)
        if request is None:
            return False
        if ended_ns is not None and self.closed_loop is not None:
            free_ns = self.closed_loop.next_arrival_ns(request.index, ended_ns)
            waits = self.closed_loop.keeps_times and request.arrival_ns > free_ns
            request.arrival_ns = request.arrival_ns if waits else free_ns
            if request.arrival_ns > LATEST_NS:
                raise WorkloadError(
                    f"workload.arrivals: request {request.index} would arrive {request.arrival_ns / 1e9:.3g} s after "
                    "the first; allowed: up to 146 years (is think_time_s meant?)"
                )
        heappush(self._due, (request.arrival_ns, request.index, request))
        return True

    def _await(self) -> None:
        """Wake up when the next request is due, unless a call that early is on its way."""
        if not self._due:
            return
        due = max(self._due[0][0], self.env.now)
        if self._waking_ns is None or due < self._waking_ns:
            self._waking_ns = due
            if self.in_turn:
                late = due == self.env.now and is_late(self.env)
                Call(self.env, due, self._on_due, LATE if late else ARRIVALS)
            else:
                Call(self.env, due, self._on_due)

    def _on_due(self, _event: simpy.Event) -> None:
        if self._waking_ns is not None and self._waking_ns <= self.env.now:
            self._waking_ns = None
        self.deliver(self.env.now)
        self._await()
