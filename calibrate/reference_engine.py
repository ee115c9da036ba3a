"""A small serving engine that is real: the simulator's own scheduler and allocator, a model that computes, a clock.

Continuous batching, chunked prompts, paged KV, one step after the other. What the simulator's engine predicts, this
one does: the same objects decide which tokens a step computes, and a clock says how long it took.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ..kernels.scheduled import Scheduled
from ..sim.engine.decoding import DecodeCohort
from ..sim.engine.request import Request, Status
from .errors import CalibrationError
from .realclock import Clock

if TYPE_CHECKING:
    from ..sim.kvcache.base import KVAllocator
    from ..sim.scheduler.base import Scheduler
    from ..sim.workload.workload import ClosedLoopLoad, Workload


class Model(Protocol):
    """What computes a step; ``membound.kernels.decoder.Decoder`` is one."""

    def step(self, batch: Sequence[Scheduled]) -> list[int]:
        """Compute every sequence's tokens and return a next token for each, once they are known."""
        ...


@dataclass(frozen=True, slots=True)
class ServedStep:
    """One step that was computed.

    Attributes
    ----------
    start_ns, end_ns : when it was composed and when its tokens were known [ns]
    tokens : index of each request -> tokens computed for it, in scheduling order
    decodes : keys that each sequence of one token reads, that token included [tokens]
    prefill : (new tokens, tokens cached before) of every other sequence
    used_blocks : blocks that are taken while it runs
    """

    start_ns: int
    end_ns: int
    tokens: dict[int, int]
    decodes: tuple[int, ...]
    prefill: tuple[tuple[int, int], ...]
    used_blocks: int

    @property
    def seconds(self) -> float:
        """How long it took, from composition to tokens [s]."""
        return (self.end_ns - self.start_ns) * 1e-9


class ReferenceEngine:
    """One engine with its model, serving one load after the other; to a scheduler it is a ``SchedulerView``.

    Parameters
    ----------
    scheduler, allocator : the simulator's; the allocator without prefix caching, since a block of this cache
        belongs to one request
    model : computes the steps, over a cache of at least the allocator's blocks
    clock : tells the time
    vocab : prompts are drawn from so many tokens
    seed : of the prompts

    Attributes
    ----------
    steps : all steps so far
    sequences : prompt and answer of every request that has ended, by index; of one load after another the latest
        [token ids]
    """

    def __init__(
        self,
        scheduler: Scheduler,
        allocator: KVAllocator,
        model: Model,
        clock: Clock,
        *,
        vocab: int,
        seed: int = 0,
    ) -> None:
        if scheduler.holds_batch:
            raise CalibrationError(
                f"scheduler {scheduler.name!r} computes padding; the reference engine runs policies that do not"
            )
        self.scheduler, self.allocator, self.model, self.clock = scheduler, allocator, model, clock
        self.running: list[Request] = []
        self.individuals = self.running  # every running request is looked at in every step
        self.waiting = scheduler.queue()
        self.fetching: dict[Request, None] = {}  # no KV comes from elsewhere
        self.decoding = DecodeCohort(allocator.block_size)
        self.steps: list[ServedStep] = []
        self.sequences: dict[int, list[int]] = {}
        self._vocab, self._rng = vocab, np.random.default_rng(seed)
        self._ids: dict[Request, list[int]] = {}
        self._blocks: dict[Request, list[int]] = {}
        self._free = list(range(allocator.num_blocks - 1, -1, -1))

    # -- what the scheduler sees and does ---------------------------------------------------------------------

    def dissolve(self) -> None:
        """Do nothing: nobody is in the decode cohort."""

    def preempt(self, request: Request) -> None:
        """Stop a running request and queue it again; it keeps the tokens of its answer and loses its blocks."""
        self.allocator.free(request, request.num_computed_tokens)
        self._free += reversed(self._blocks.pop(request))
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        request.status = Status.PREEMPTED
        self.running.remove(request)
        self.waiting.requeue(request)

    def admit(self, request: Request, cached: int) -> None:
        """Move the first waiting request to the running ones."""
        if cached:
            raise CalibrationError(
                "the reference engine shares no blocks: set enable_prefix_caching to false"
            )
        self.waiting.pop()
        self.running.append(request)
        self._blocks[request] = []
        request.status = Status.RUNNING
        if request.first_scheduled_ns < 0:
            request.first_scheduled_ns = self._now

    # -- the loop ---------------------------------------------------------------------------------------------

    def serve(self, workload: Workload) -> list[Request]:
        """Serve a load to its end and return its requests, in the order of their index, times filled in.

        Raises
        ------
        CalibrationError : a request that can never be served
        """
        arrivals = _Arrivals(workload.iter_requests(), workload.closed_loop)
        served: list[Request] = []
        self._now = self.clock.now_ns()
        started = self._now
        while True:
            for request in arrivals.due(self._now - started):
                self._submit(request)
                served.append(request)
            if not (self.running or self.waiting):
                due = arrivals.next_ns()
                if due is None:
                    break
                self.clock.advance_to(started + due)
                self._now = max(self.clock.now_ns(), started + due)
                continue
            for _ in range(self._step()):
                arrivals.answered(self._now - started)
        for request in served:
            request.first_scheduled_ns -= started
            request.first_token_ns -= started
            request.last_token_ns -= started
        return sorted(served, key=lambda request: request.index)

    def _submit(self, request: Request) -> None:
        needed = request.input_tokens + request.output_tokens
        reason = self.scheduler.refuses(request)
        if reason is None and not self.allocator.fits(needed):
            reason = f"{needed} tokens exceed the KV pool"
        if reason is not None:
            raise CalibrationError(f"request {request.index} cannot be served: {reason}")
        self._ids[request] = self._rng.integers(0, self._vocab, request.input_tokens).tolist()
        self.waiting.push(request)

    def _step(self) -> int:
        """Compose and compute one step; return how many requests it ended."""
        start = self._now
        batch = self.scheduler.schedule(self, self.allocator)
        if not batch.tokens:
            raise CalibrationError(f"the {self.scheduler.name} scheduler composed an empty step")
        sequences: list[Scheduled] = []
        for request, tokens in batch.tokens.items():
            before = request.num_computed_tokens
            after = request.num_computed_tokens = before + tokens
            blocks = self._blocks[request]
            while len(blocks) * self.allocator.block_size < after:
                blocks.append(self._free.pop())
            sequences.append(Scheduled(self._ids[request][before:after], before, blocks))
        used = self.allocator.num_blocks - len(self._free)
        chosen = self.model.step(sequences)
        self._now = self.clock.now_ns()
        self.steps.append(_served(start, self._now, batch.tokens, sequences, used))
        known = [
            (request, token)
            for request, token in zip(batch.tokens, chosen, strict=True)
            if request.num_computed_tokens == request.num_tokens
        ]
        return sum(self._deliver(request, token) for request, token in known)

    def _deliver(self, request: Request, token: int) -> bool:
        """Hand out a token; tell whether it was the request's last."""
        if request.first_token_ns < 0:
            request.first_token_ns = self._now
        request.num_output_tokens += 1
        self._ids[request].append(token)
        if request.num_output_tokens < request.output_tokens:
            return False
        request.last_token_ns = self._now
        request.status = Status.COMPLETED
        self.running.remove(request)
        self.allocator.free(request, request.num_tokens_needed)
        self._free += reversed(self._blocks.pop(request))
        self.sequences[request.index] = self._ids.pop(request)
        return True

    @property
    def free_blocks(self) -> int:
        """Blocks of the cache that belong to nobody."""
        return len(self._free)


def _served(
    start: int, end: int, tokens: dict[Request, int], sequences: Sequence[Scheduled], used: int
) -> ServedStep:
    return ServedStep(
        start,
        end,
        {request.index: count for request, count in tokens.items()},
        tuple(each.after for each in sequences if len(each.tokens) == 1),
        tuple((len(each.tokens), each.before) for each in sequences if len(each.tokens) > 1),
        used,
    )


class _Arrivals:
    """Who arrives when: fixed beforehand, or after an answer to the same user."""

    def __init__(self, requests: Iterator[Request], closed_loop: ClosedLoopLoad | None) -> None:
        self._requests, self._closed_loop = requests, closed_loop
        self._due: list[tuple[int, int, Request]] = []
        for _ in range(1 if closed_loop is None else closed_loop.concurrency):
            self._draw()

    def next_ns(self) -> int | None:
        """Return when the next request arrives; None if nobody does any more [ns]."""
        return self._due[0][0] if self._due else None

    def due(self, now_ns: int) -> Iterator[Request]:
        """Yield who has arrived by now."""
        while self._due and self._due[0][0] <= now_ns:
            request = heappop(self._due)[2]
            if self._closed_loop is None:
                self._draw()
            yield request

    def answered(self, now_ns: int) -> None:
        """Learn that a request has been answered: in a closed loop its user sends the next one."""
        if self._closed_loop is not None:
            self._draw(now_ns)

    def _draw(self, ended_ns: int | None = None) -> None:
        request = next(self._requests, None)
        if request is None:
            return
        if ended_ns is not None and self._closed_loop is not None:
            request.arrival_ns = self._closed_loop.next_arrival_ns(request.index, ended_ns)
        heappush(self._due, (request.arrival_ns, request.index, request))
