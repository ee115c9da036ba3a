"""Several replicas under one clock, behind a router.

An instant has an order, so that nothing depends on whose turn SimPy takes first, nor on whether an engine jumps: steps
end and answers leave, then requests arrive and are routed, by time and index, then steps are composed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, final

from .clock import is_late

if TYPE_CHECKING:
    from .admission import Gate
    from .clock import Clock
    from .replica import Replica
    from .request import Request
    from .router.base import Router


@final
class Fleet:
    """What routes requests to replicas, and what the router sees of them (`router.base.ClusterView`).

    Parameters
    ----------
    env : the clock of them all [ns]
    replicas : the engines; they start empty
    router : who sends each request to one of them
    on_finish : called with every request that ends
    gate : turns requests away before they are routed; None lets all in

    Attributes
    ----------
    outstanding : requests sent to each replica that have not ended
    ready : replicas that take requests, in ascending order
    """

    def __init__(
        self,
        env: Clock,
        replicas: Sequence[Replica],
        router: Router,
        on_finish: Callable[[Request], None],
        gate: Gate | None = None,
    ) -> None:
        self.env = env
        self.router = router
        self.on_finish = on_finish
        self.gate = gate
        self.outstanding = [0] * len(replicas)
        self.ready = list(range(len(replicas)))
        self.engines = [
            replica.start(env, self._ended_on(number), among_others=True)
            for number, replica in enumerate(replicas)
        ]

    def kv_usage(self, replica: int) -> float:
        """Return the share of a replica's KV pool that is in use, also in the middle of a jump."""
        state = self.engines[replica].state_at(self.env.now + is_late(self.env))
        return state.used_blocks / state.num_blocks

    def submit(self, request: Request) -> None:
        """Send a request that arrives now where the router says.

        Who is turned away is entered in the books of the first replica.
        """
        if self.gate is not None:
            reason = self.gate.refuses(self.env.now, sum(self.outstanding))
            if reason is not None:
                self.outstanding[0] += 1
                self.engines[0].turn_away(request, reason)
                return
        replica = self.router.route(request, self)
        self.outstanding[replica] += 1
        self.engines[replica].submit(request)

    def _ended_on(self, replica: int) -> Callable[[Request], None]:
        def ended(request: Request) -> None:
            self.outstanding[replica] -= 1
            self.on_finish(request)

        return ended
