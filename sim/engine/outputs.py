"""What becomes of a step that has ended: its tokens are handed out, and requests that have all of theirs leave."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from .request import COMPLETED, RUNNING, Request

if TYPE_CHECKING:
    from ..books.recorder import Recorder
    from ..kvcache.base import KVAllocator
    from ..scheduler.base import Scheduler, WaitingQueue
    from .decoding import DecodeCohort
    from .engine import Engine
    from .flight import Flight, Observer
    from .pipeline import Pipeline


class Outputs:
    """The part of an engine that applies steps; `Engine` composes them."""

    running: list[Request]
    waiting: WaitingQueue
    individuals: list[Request]
    decoding: DecodeCohort
    padding: DecodeCohort
    scheduler: Scheduler
    allocator: KVAllocator
    recorder: Recorder
    observer: Observer | None
    on_finish: Callable[[Request], None]
    live_tokens: int
    pipeline: Pipeline | None

    def _apply(self, flight: Flight) -> None:
        """Hand out the tokens of a step that has ended."""
        end, step = flight.end_ns, flight.step + flight.steps - 1
        recorder, members = self.recorder, self.decoding.members
        recorder.applied_steps = step + 1
        if not (flight.emitting or flight.last or flight.late or self.observer):
            return
        finished: list[Request] = []
        for request in flight.late:
            request.num_output_tokens += recorder.emit(request, step, end)
            recorder.late_tokens += 1
            if request.num_output_tokens >= request.output_tokens:
                self.waiting.remove(request)
                self.allocator.discard(request)
                finished.append(request)
                self._end(request, step, end)
        for request in flight.emitting:
            if request.status is not RUNNING:
                recorder.wasted_tokens += request.status is COMPLETED
            elif request in members:
                if request.stretch_step < 0:
                    recorder.emit(request, step, end)
                    recorder.open(request, step)
            else:
                tokens = recorder.emit(request, step, end)
                request.num_pending_tokens -= tokens if self.pipeline is None else 0
                request.num_output_tokens += tokens
                if self.allocator.tracks_content_of(request):
                    self.allocator.note_output(request)
        for request in flight.last:
            if request.status is RUNNING:
                self._finish(request, flight, step, end)
                finished.append(request)
        if self.observer is not None:
            self.observer.applied(cast("Engine", self), flight, finished)

    def _finish(self, request: Request, flight: Flight, step: int, end: int) -> None:
        """Deliver the last token of a running request."""
        if request in self.decoding.members:
            self.decoding.leave(request)
            self.recorder.close(request, step)
            # An over-run is composed already; of an individual it is counted when that step's outputs are dropped.
            self.recorder.wasted_tokens += request.num_computed_tokens - request.num_tokens_needed
        elif request in self.individuals:
            self.individuals.remove(request)
        if request not in flight.emitting and request.last_token_ns < end:
            self.recorder.emit(request, step, end)
        request.num_output_tokens = request.output_tokens
        request.num_pending_tokens = 0
        self.running.remove(request)
        if self.scheduler.holds_batch:
            self.padding.join(request, 1 << 62)
            if not self.running:
                self._release_padding()
        else:
            self._release(request)
        self._end(request, step, end)

    def _release(self, request: Request) -> None:
        self.live_tokens -= request.num_held_tokens
        self.allocator.free(request, request.num_tokens_needed)

    def _release_padding(self) -> None:
        for request in list(self.padding.members):
            kept = request.num_computed_tokens
            self.padding.leave(request)
            request.num_computed_tokens = kept
            self._release(request)

    def _end(self, request: Request, step: int, end: int) -> None:
        request.status = COMPLETED
        request.last_token_ns = end
        self.recorder.finish(request, step)
        self.on_finish(request)
