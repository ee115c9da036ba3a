"""KV that comes from another replica: a request gets its blocks, waits for what fills them, and then runs.

This is what vLLM's KV connectors do with ``load_kv_async``. What comes in between two compositions is seen by the next,
as an arrival is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..clock import is_late

if TYPE_CHECKING:
    import simpy

    from ..clock import Clock
    from ..kvcache.base import KVAllocator
    from ..scheduler.base import WaitingQueue
    from .decoding import DecodeCohort
    from .flight import Run
    from .request import Request


class Fetching:
    """The part of an engine that has KV sent to it; `Engine` composes steps.

    Attributes
    ----------
    fetching : requests that hold blocks and a seat, and whose KV is on its way
    on_fetch : has the KV of a request sent here, all but so many tokens that are cached
    """

    env: Clock
    fetching: dict[Request, None]
    on_fetch: Callable[[Request, int], None] | None
    waiting: WaitingQueue
    allocator: KVAllocator
    decoding: DecodeCohort
    run: Run | None
    depth: int
    _wake: simpy.Event | None
    _news: list[tuple[Request, bool]]

    def fetch(self, request: Request, cached: int) -> None:
        """Have the KV of the first waiting request sent here: it has got its blocks."""
        assert self.on_fetch is not None
        self.waiting.pop()
        self.fetching[request] = None
        self.on_fetch(request, cached)

    def fetched(self, request: Request, *, lost: bool = False) -> None:
        """Learn that the KV of a request has come, or that it never will: then it is computed here."""
        self._news.append((request, lost))
        if self._wake is None:
            self._wake_at(self.env.now)
        elif self.run is not None:
            self._cut(self.env.now)

    def cached_tokens(self, request: Request) -> int:
        """Return how much of a prompt is in the prefix cache now, also in the middle of a jump [tokens]."""
        now = self.env.now + is_late(self.env)
        if self.run is not None and (composed := self.run.composed_before(now, self.depth)):
            self.allocator.forget(self.decoding.blocks_needed(composed))
        return self.allocator.lookup(request)

    def _take_news(self) -> None:
        """Let requests run whose KV has come, and have that computed which is lost."""
        news, self._news = self._news, []
        for request, lost in news:
            request.remote_kv = False
            awaited = request in self.fetching
            if awaited:
                del self.fetching[request]
            if not lost:
                self._run(request, request.input_tokens)
            elif awaited:
                self.allocator.free(request, 0)
                self.waiting.requeue(request)

    def _run(self, request: Request, cached: int) -> None:
        raise NotImplementedError

    def _wake_at(self, time_ns: int) -> None:
        raise NotImplementedError

    def _cut(self, now: int) -> None:
        raise NotImplementedError
