"""Prefill and decode on replicas of their own, behind a router each.

A request gets its decode replica when it arrives. Its prompt is computed on a prefill replica, as a request of one
token beside it (its *leg*), as vLLM's proxies and Dynamo do; then it waits at its decode replica like any other, gets
its blocks there, and its KV is sent. The leg keeps its blocks until that has arrived. What ends at one instant is put
in order and handed on a nanosecond later, so that nothing depends on whose turn SimPy takes first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast, final

from ..clock import RETURNS, Call
from ..engine.request import Request, Status
from .fleet import Fleet
from .prefilling import PrefillEngine

if TYPE_CHECKING:
    import simpy

    from ..clock import Clock
    from ..engine.engine import Engine
    from ..router.base import Router
    from .handover import Handovers
    from .replica import Replica

_Entry = TypeVar("_Entry")


@final
class Pool:
    """What one of both routers sees of its replicas (`router.base.ClusterView`).

    Attributes
    ----------
    outstanding : of all replicas of the fleet
    ready : those of the pool that take requests, in ascending order
    """

    def __init__(self, fleet: Fleet, members: Sequence[int], router: Router) -> None:
        self.members = frozenset(members)
        self.ready = list(members)
        self.outstanding = fleet.outstanding
        self.kv_usage = fleet.kv_usage
        self._router = router

    def route(self, request: Request) -> int:
        """Return the replica that a request goes to."""
        return self._router.route(request, self)

    def take_out(self, replica: int) -> None:
        """Send a replica no more requests."""
        self.ready.remove(replica)
        self._router.gone(replica)

    def put_back(self, replica: int) -> None:
        """Send a replica requests again."""
        self.ready = sorted([*self.ready, replica])


@final
class Leg:
    """The way of one request over a prefill replica.

    Attributes
    ----------
    request, own : the request, and that of one token which the prefill replica serves for it
    prefill, decode : where to
    held : its KV lies on the prefill replica
    """

    __slots__ = ("decode", "entry", "held", "own", "prefill", "request")

    def __init__(self, request: Request, own: Request, prefill: int, decode: int) -> None:
        self.request, self.own = request, own
        self.prefill, self.decode = prefill, decode
        self.held = False
        self.entry = -1


@final
class SplitFleet(Fleet):
    """Routes requests to a prefill replica and a decode replica.

    ``outstanding`` of a decode replica counts its requests from their arrival on, that of a prefill replica the prompts
    that wait or are computed there. A prefill replica that fails takes the KV along that it had not sent: that is
    computed again on the decode replica, as is what a decode replica that fails was at, on another one.

    Parameters
    ----------
    env : the clock of them all [ns]
    replicas : those for prefill, then those for decode
    prefill : how many are for prefill
    routers : of both pools
    on_finish : called with every request that ends
    handovers : what KV goes over, and the books of what went
    others : ``gate`` and ``outages`` as of `Fleet`
    """

    def __init__(
        self,
        env: Clock,
        replicas: Sequence[Replica],
        prefill: int,
        routers: tuple[Router, Router],
        on_finish: Callable[[Request], None],
        handovers: Handovers,
        **others: Any,
    ) -> None:
        self._prefill_replicas = prefill
        self.handovers = handovers
        super().__init__(env, replicas, routers[1], on_finish, **others)
        self.porter = prefill
        self.pools = tuple(
            Pool(self, members, router)
            for members, router in zip((range(prefill), range(prefill, len(replicas))), routers, strict=True)
        )
        self._legs: dict[Request, Leg] = {}
        self._done: list[tuple[int, Leg]] = []
        self._asked: list[tuple[int, tuple[Leg, int]]] = []

    def _start(self, number: int, replica: Replica) -> Engine:
        if number >= self._prefill_replicas:
            engine = super()._start(number, replica)
            engine.on_fetch = self._on_fetch
            return engine
        engine = replica.start(self.env, _nobody, among_others=True, kind=PrefillEngine)
        assert isinstance(engine, PrefillEngine)
        engine.on_prefilled = self._on_prefilled
        engine.on_refused = self._on_refused
        return engine

    def _inside(self) -> int:
        return sum(self.outstanding[self._prefill_replicas :]) + len(self.line)

    def _serves(self) -> bool:
        return all(pool.ready for pool in self.pools)

    def _send(self, request: Request) -> None:
        prefill, decode = self.pools
        chosen = decode.route(request)
        engine = self.engines[chosen]
        self.outstanding[chosen] += 1
        reason = engine.refuses(request)
        if reason is not None:
            engine.turn_away(request, reason)
        elif request.num_output_tokens or self._stays(request, engine):
            self.handovers.local += not request.num_output_tokens
            engine.submit(request)
        else:
            self._compute(request, prefill.route(request), chosen)

    def _stays(self, request: Request, engine: Engine) -> bool:
        """Tell whether a prompt is computed on its decode replica."""
        rules = self.handovers.rules
        if rules.max_prefill_queue_size is not None:
            waiting = sum(self.outstanding[: self._prefill_replicas])
            if waiting >= rules.max_prefill_queue_size:
                return True
        most = rules.max_local_prefill_length
        return most > 0 and request.input_tokens - engine.cached_tokens(request) <= most

    def _compute(self, request: Request, replica: int, decode: int) -> None:
        """Have a prompt computed on a prefill replica."""
        own = Request(
            request.index, request.arrival_ns, request.input_tokens, 1,
            priority=request.priority, block_hashes=request.block_hashes, session=request.session,
            tenant=request.tenant, slo_class=request.slo_class, request_id=request.request_id,
        )  # fmt: skip
        own.first_scheduled_ns, own.num_cached_tokens = request.first_scheduled_ns, request.num_cached_tokens
        self._legs[own] = self._legs[request] = Leg(request, own, replica, decode)
        self.outstanding[replica] += 1
        self.engines[replica].submit(own)

    # -- what the prefill replicas say --------------------------------------------------------------------------

    def _on_refused(self, own: Request, reason: str) -> None:
        leg = self._legs[own]
        self._drop(leg)
        self.outstanding[leg.prefill] -= 1
        self.engines[leg.decode].turn_away(leg.request, reason)

    def _on_prefilled(self, own: Request) -> None:
        """Learn that a prompt is computed: a step has ended, with its first token."""
        leg = self._legs[own]
        request, engine = leg.request, self._prefill_engine(leg)
        leg.held = own in engine.held
        for name in ("first_scheduled_ns", "first_token_ns", "last_token_ns", "num_cached_tokens"):
            setattr(request, name, getattr(own, name))
        request.num_preemptions += own.num_preemptions
        request.num_output_tokens = 1
        self.outstanding[leg.prefill] -= 1
        if request.output_tokens > 1:
            self._hand_on(self._done, leg, self._deliver)
            return
        self._drop(leg)
        self.outstanding[leg.decode] -= 1
        request.status = Status.COMPLETED
        engine.recorder.finish(request)
        self.on_finish(request)

    def _hand_on(
        self, line: list[tuple[int, _Entry]], entry: _Entry, then: Callable[[simpy.Event], None]
    ) -> None:
        """Put something in a line that is looked at a nanosecond later."""
        now = self.env.now
        if not line or line[-1][0] < now:
            Call(self.env, now + 1, then, RETURNS)
        line.append((now, entry))

    def _handed_on(self, line: list[tuple[int, _Entry]]) -> list[_Entry]:
        """Take what was put in a line before this instant."""
        ready = [entry for since, entry in line if since < self.env.now]
        del line[: len(ready)]
        return ready

    def _deliver(self, _event: simpy.Event) -> None:
        """Let those whose prompts are computed wait at their decode replicas."""
        for leg in sorted(self._handed_on(self._done), key=_in_order):
            if leg.decode in self.down:  # it failed meanwhile
                self._drop(leg)
                self._route_again(leg)
                continue
            leg.request.remote_kv = leg.held
            if leg.held:
                leg.entry = self.handovers.handed(leg.request.index, leg.prefill, leg.decode, self.env.now)
            else:
                self._drop(leg)
            self.engines[leg.decode].submit(leg.request)

    def _drop(self, leg: Leg) -> None:
        """Forget a leg, and the KV that it holds."""
        del self._legs[leg.own], self._legs[leg.request]
        if leg.held:
            leg.held = False
            self._prefill_engine(leg).let_go(leg.own)

    def _prefill_engine(self, leg: Leg) -> PrefillEngine:
        return cast("PrefillEngine", self.engines[leg.prefill])

    # -- transfers ----------------------------------------------------------------------------------------------

    def _on_fetch(self, request: Request, cached: int) -> None:
        """Learn that a decode replica has room for the KV of a request, ``cached`` tokens of which it has."""
        self._hand_on(self._asked, (self._legs[request], cached), self._launch)

    def _launch(self, _event: simpy.Event) -> None:
        """Send what was asked for, in order."""
        for leg, cached in sorted(self._handed_on(self._asked), key=lambda asked: _in_order(asked[0])):
            if leg.held:
                allocator = self.engines[leg.decode].allocator
                blocks = allocator.blocks_of(leg.request.input_tokens) - cached // allocator.block_size
                arrives = self.handovers.send(leg.entry, blocks, self.env.now)
                Call(self.env, arrives, self._arriving(leg), RETURNS)

    def _arriving(self, leg: Leg) -> Callable[[simpy.Event], None]:
        def arrived(_event: simpy.Event) -> None:
            if leg.held:
                self._drop(leg)
                self.engines[leg.decode].fetched(leg.request)

        return arrived

    # -- failures -----------------------------------------------------------------------------------------------

    def _take_out(self, replica: int) -> None:
        self._pool_of(replica).take_out(replica)

    def _put_back(self, replica: int) -> None:
        self._pool_of(replica).put_back(replica)

    def _pool_of(self, replica: int) -> Pool:
        return self.pools[replica >= self._prefill_replicas]

    def _give_back(self, replica: int, left: list[Request]) -> int:
        if replica < self._prefill_replicas:
            return self._lose(replica, left)
        for request in left:
            request.remote_kv = False
            if request in self._legs:
                self._drop(self._legs[request])
        return super()._give_back(replica, left)

    def _lose(self, replica: int, left: list[Request]) -> int:
        """Route again what a prefill replica was at; what it had not sent on is computed where it should have gone."""
        for own in left:
            leg = self._legs[own]
            self._drop(leg)
            request = leg.request
            request.first_scheduled_ns, request.num_cached_tokens = (
                own.first_scheduled_ns,
                own.num_cached_tokens,
            )
            request.num_preemptions += own.num_preemptions
            self.outstanding[replica] -= 1
            self.outstanding[leg.decode] -= 1
            self.line.append(request)
        lost = [
            leg for own, leg in self._legs.items() if own is leg.own and leg.prefill == replica and leg.held
        ]
        for leg in lost:
            leg.held = False
            if leg.entry >= 0:
                self._drop(leg)
                self.engines[leg.decode].fetched(leg.request, lost=True)
        return len(left)

    def _route_again(self, leg: Leg) -> None:
        """Route a request again whose decode replica failed while its prompt was computed."""
        assert self.outages is not None
        self.outages.requeued[leg.decode] += 1
        self.outstanding[leg.decode] -= 1
        self.line.append(leg.request)
        Call(self.env, self.env.now + 1, self._settle, RETURNS)


def _in_order(leg: Leg) -> tuple[int, int]:
    return leg.request.arrival_ns, leg.request.index


def _nobody(_request: Request) -> None:
    """Requests that a prefill replica serves end in the books of others."""
