"""An engine that fails, or is shut down: it gives back everybody it serves."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from .fetching import Fetching

if TYPE_CHECKING:
    from ..scheduler.base import Scheduler
    from .request import Request


class Stopping(Fetching):
    """The part of an engine that stops; `Engine` composes steps.

    Attributes
    ----------
    on_stopped : it fails: nothing is composed any more, and this gets all requests
    """

    scheduler: Scheduler
    running: list[Request]
    on_stopped: Callable[[list[Request]], None] | None

    def stop(self, then: Callable[[list[Request]], None]) -> None:
        """Fail: what is composed ends, then all requests are given to ``then``, in order of arrival, their KV lost."""
        self.on_stopped = then
        if self._wake is None:
            self._hand_over(then)
        elif self.run is not None:
            self._cut(self.env.now)

    def _hand_over(self, then: Callable[[list[Request]], None]) -> None:
        """Give back everybody, and forget all that is cached: the engine is as new."""
        self._take_news()
        for request in list(self.running):
            self.preempt(request)
        self._release_padding()
        for request in self.fetching:
            self.allocator.free(request, 0)
        left = sorted(
            (*self.waiting, *self.fetching), key=lambda request: (request.arrival_ns, request.index)
        )
        self.fetching.clear()
        self.waiting = self.scheduler.queue()
        self.allocator.forget(self.allocator.free_blocks)
        self.on_stopped = None
        then(left)

    def preempt(self, request: Request) -> None:
        """Stop a running request and queue it again."""
        raise NotImplementedError

    def _release_padding(self) -> None:
        raise NotImplementedError
