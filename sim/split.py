"""Prefill and decode beside each other on one device, each on its share of the compute units.

Two streams of steps share HBM, the link and one KV pool. A request's prompt is computed on the prefill stream; with its
first token it moves to the decode stream, its KV where it is. Who is preempted there has its KV computed again on the
prefill stream. This is how SM-partitioned servers work (MuxServe, arXiv:2404.02015; Bullet, arXiv:2504.19516; Nexus,
arXiv:2507.06608); while one stream has nothing to run, the other has all units.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn, cast, final

from ..hwmodels.stepmodel import StepModel
from ..hwmodels.unitshare import SplitTimer, UnitShare
from .building import step_model
from .engine.engine import Engine

if TYPE_CHECKING:
    from ..hwmodels.steptypes import StepDevice
    from .cluster.replica import ReplicaKind
    from .engine.flight import Flight, StepTimer
    from .engine.request import Request
    from .scheduler.vllm_v1 import VllmV1


def timers(kind: ReplicaKind) -> tuple[StepTimer, StepTimer]:
    """Return what times the prefill stream and the decode stream of a scenario with ``compute_split``."""
    split = kind.resolved.scenario.compute_split
    assert split is not None
    whole = cast("StepModel", kind.model)

    def on(share: float) -> StepTimer:
        part = step_model(kind.resolved, cast("StepDevice", UnitShare(cast("StepDevice", kind.lanes), share)))
        return SplitTimer(whole, cast("StepModel", part), share)

    return on(split.prefill), on(split.decode)


@final
class PrefillEngine(Engine):
    """Computes prompts; a request leaves with its first token, unless that is its last.

    Requests that decode take seats of ``max_num_seqs`` too.
    """

    def __init__(self, *args: Any, decode: DecodeEngine, **options: Any) -> None:
        super().__init__(*args, **options)
        self.decode = decode
        self.may_rest = True
        self._seats = cast("VllmV1", self.scheduler).max_num_seqs
        self._leaving: list[Request] = []
        decode.waiting = _BackToPrefill(self)

    def wake(self) -> None:
        """Look again who can be admitted: blocks or seats have become free."""
        if self.waiting and self._wake is None and not self._busy:
            self._wake_at(self.env.now)

    def _compose(self, now: int) -> bool:
        cast("VllmV1", self.scheduler).max_num_seqs = self._seats - len(self.decode.running)
        return super()._compose(now)

    def _promote(self, emitting: list[Request], flight: Flight) -> None:
        """Let requests whose prompt is computed leave when this step ends."""
        ends = [request for request in emitting if request.num_computed_tokens >= request.num_tokens_needed]
        super()._promote(ends, flight)
        self._leaving = [request for request in emitting if request not in ends]
        for request in self._leaving:
            request.num_pending_tokens += 1

    def _apply(self, flight: Flight) -> None:
        super()._apply(flight)
        leaving, self._leaving = self._leaving, []
        for request in leaving:
            self.running.remove(request)
            self.individuals.remove(request)
            self.live_tokens -= request.num_computed_tokens
            self.decode.adopt(request)


@final
class DecodeEngine(Engine):
    """Gives the requests that it is handed a token a step."""

    def adopt(self, request: Request) -> None:
        """Go on with a request whose prompt is computed and whose KV is in the pool."""
        self.running.append(request)
        self.individuals.append(request)
        self.live_tokens += request.num_computed_tokens
        if self._wake is None and not self._busy:
            self._wake_at(self.env.now)


@final
class _BackToPrefill:
    """The waiting line of the decode stream: always empty, whoever is put there waits for the prefill stream."""

    def __init__(self, prefill: PrefillEngine) -> None:
        self._prefill = prefill

    def requeue(self, request: Request) -> None:
        """Have a preempted request's KV computed again."""
        self._prefill.waiting.requeue(request)
        self._prefill.wake()

    def push(self, request: Request) -> None:
        """Let a request wait for its prompt."""
        self._prefill.waiting.push(request)
        self._prefill.wake()

    def remove(self, request: Request) -> None:
        """Take out a request wherever it stands."""
        self._prefill.waiting.remove(request)

    def peek(self) -> NoReturn:
        """Nobody waits here."""
        raise IndexError("the decode stream has no waiting requests")

    def pop(self) -> NoReturn:
        """Nobody waits here."""
        raise IndexError("the decode stream has no waiting requests")

    def __len__(self) -> int:
        return 0

    def __iter__(self) -> Iterator[Request]:
        return iter(())


class PoolMeter:
    """How full a pool that two engines share is, summed over time; it looks whenever one of them changes it.

    Attributes
    ----------
    used_ns, held_ns, live_ns : blocks in use, blocks held, tokens held, each times the time [ns]
    peak_blocks : most blocks in use
    """

    def __init__(self, engines: Callable[[], tuple[Engine, ...]]) -> None:
        self._engines = engines
        self.used_ns = self.held_ns = self.live_ns = 0
        self.peak_blocks = 0
        self._since = self._used = self._held = self._live = 0

    def look(self, now: int) -> None:
        """Add up what held until now, and take down what holds from now on."""
        passed, self._since = now - self._since, now
        self.used_ns += self._used * passed
        self.held_ns += self._held * passed
        self.live_ns += self._live * passed
        engines = self._engines()
        pool = engines[0].allocator
        self._used, self._held = pool.num_blocks - pool.free_blocks, pool.held_blocks
        self._live = sum(engine.live_tokens for engine in engines)
        self.peak_blocks = max(self.peak_blocks, self._used)

    def composed(self, engine: Engine, _flight: Flight, _batch: Any) -> None:
        """A step was composed."""
        self.look(engine.env.now)

    def repeated(self, *_run: Any) -> None:
        """A shared device is never jumped over."""

    def applied(self, engine: Engine, _flight: Flight, _finished: list[Request]) -> None:
        """A step's outputs were applied."""
        self.look(engine.env.now)
