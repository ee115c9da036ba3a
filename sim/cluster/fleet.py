"""Several replicas under one clock, behind a router.

An instant has an order, so that nothing depends on whose turn SimPy takes first, nor on whether an engine jumps: steps
end and answers leave, replicas fail, others are back, then requests arrive and are routed, by time and index, then
steps are composed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..clock import FAILURES, RETURNS, Call, is_late

if TYPE_CHECKING:
    import simpy

    from ..clock import Clock
    from ..engine.engine import Engine
    from ..engine.request import Request
    from ..router.base import Router
    from .admission import Gate
    from .failures import Outages
    from .replica import Replica


class Fleet:
    """What routes requests to replicas, and what the router sees of them (`router.base.ClusterView`).

    A replica that fails takes no more requests. The steps it has composed still end, with effect; then all that run or
    wait on it are routed again, one nanosecond later, as after a preemption: their KV is lost and computed again, the
    tokens they have got stay. While no replica is up, requests wait in line here.

    Parameters
    ----------
    env : the clock of them all [ns]
    replicas : the engines; they start empty
    router : who sends each request to one of them
    on_finish : called with every request that ends
    gate : turns requests away before they are routed; None lets all in
    outages : when replicas fail; None: never

    Attributes
    ----------
    outstanding : requests sent to each replica that have not ended
    ready : replicas that take requests, in ascending order
    line : requests that wait for a replica that is up
    down : replicas that have failed and are not back
    porter : the replica in whose books requests are entered that are turned away before they are routed
    closed : all requests have ended: nothing fails any more
    """

    def __init__(
        self,
        env: Clock,
        replicas: Sequence[Replica],
        router: Router,
        on_finish: Callable[[Request], None],
        gate: Gate | None = None,
        outages: Outages | None = None,
    ) -> None:
        self.env = env
        self.router = router
        self.on_finish = on_finish
        self.gate = gate
        self.porter = 0
        self.outages = outages
        self.outstanding = [0] * len(replicas)
        self.ready = self._at_first(len(replicas))
        self._ups = [0] * len(replicas)
        self.line: list[Request] = []
        self.down: set[int] = set()
        self.closed = False
        self._back: dict[int, int] = {}
        self.engines = [self._start(number, replica) for number, replica in enumerate(replicas)]
        for number in self.ready:
            self._expect_failure(number)

    def _at_first(self, count: int) -> list[int]:
        """Return the replicas that take requests from the start on."""
        return list(range(count))

    def _start(self, number: int, replica: Replica) -> Engine:
        return replica.start(self.env, self._ended_on(number), among_others=True)

    def kv_usage(self, replica: int) -> float:
        """Return the share of a replica's KV pool that is in use, also in the middle of a jump."""
        state = self.engines[replica].state_at(self.env.now + is_late(self.env))
        return state.used_blocks / state.num_blocks

    def submit(self, request: Request) -> None:
        """Send a request that arrives now where the router says."""
        if self.gate is not None:
            reason = self.gate.refuses(self.env.now, self._inside())
            if reason is not None:
                self.outstanding[self.porter] += 1
                self.engines[self.porter].turn_away(request, reason)
                return
        if self._serves():
            self._send(request)
        else:
            self.line.append(request)

    def _inside(self) -> int:
        """Return how many requests were let in and have not ended."""
        return sum(self.outstanding) + len(self.line)

    def _serves(self) -> bool:
        """Tell whether a request can be routed now."""
        return bool(self.ready)

    def _send(self, request: Request) -> None:
        replica = self.router.route(request, self)
        self.outstanding[replica] += 1
        self.engines[replica].submit(request)

    # -- failures ---------------------------------------------------------------------------------------------

    def _expect_failure(self, replica: int) -> None:
        """Let a replica that is up from now on fail when it is due to."""
        due = None if self.outages is None else self.outages.next(replica, self.env.now)
        if due is not None:
            at, down = due
            self._ups[replica] += 1
            up = self._ups[replica]
            Call(self.env, at, lambda _: self._fail(replica, down, up), FAILURES)

    def _fail(self, replica: int, down_ns: int, up: int) -> None:
        """Let a replica fail, unless it was shut down since it was up for the ``up``-th time."""
        if self.closed or up != self._ups[replica]:
            return
        failed = self.env.now
        self.down.add(replica)
        self._take_out(replica)

        def stopped(left: list[Request]) -> None:
            assert self.outages is not None
            now = self.env.now
            back = max(failed + down_ns, now + 1)
            self._back[replica] = back
            self.outages.spans[replica].append((failed, back))
            self.outages.requeued[replica] += self._give_back(replica, left)
            for time in {now + 1, back}:
                Call(self.env, time, self._settle, RETURNS)

        self.engines[replica].stop(stopped)

    def _take_out(self, replica: int) -> None:
        """Send a replica no more requests: it has failed."""
        self.ready.remove(replica)
        self.router.gone(replica)

    def _put_back(self, replica: int) -> None:
        self.ready = sorted([*self.ready, replica])

    def _give_back(self, replica: int, left: list[Request]) -> int:
        """Put in line what a replica that has failed was at; return how many requests that is."""
        self.outstanding[replica] -= len(left)
        self.line += left
        return len(left)

    def _settle(self, _event: simpy.Event) -> None:
        """Take back the replicas that are up again, and route those who wait in line."""
        now = self.env.now
        for replica in sorted(number for number, back in self._back.items() if back <= now):
            del self._back[replica]
            self.down.discard(replica)
            self._put_back(replica)
            self._expect_failure(replica)
        if self.line and self._serves():
            line, self.line = self.line, []
            for request in sorted(line, key=lambda request: (request.arrival_ns, request.index)):
                self._send(request)

    def _ended_on(self, replica: int) -> Callable[[Request], None]:
        def ended(request: Request) -> None:
            self.outstanding[replica] -= 1
            self.on_finish(request)

        return ended
