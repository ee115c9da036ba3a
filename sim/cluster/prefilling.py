"""The engine of a prefill replica: computes prompts and keeps their KV until it has been sent on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, final

from ..engine.engine import Engine
from ..engine.request import Request, Status

if TYPE_CHECKING:
    from ..scheduler.base import WaitingQueue


@final
class PrefillEngine(Engine):
    """Serves one-token requests, as vLLM's prefill instances do; whoever is done keeps its blocks until `let_go`.

    What becomes of the requests themselves is written in the books by others.

    Attributes
    ----------
    held : requests that are done, and whose KV has not been sent
    on_prefilled : called with each that is done; its KV is held unless it was preempted meanwhile
    on_refused : called with each that is turned away, and the reason
    """

    waiting: WaitingQueue

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.may_rest = True
        self.held: dict[Request, None] = {}
        self.on_prefilled: Callable[[Request], None] = lambda request: None
        self.on_refused: Callable[[Request, str], None] = lambda request, reason: None

    def let_go(self, request: Request) -> None:
        """Free the blocks of a request whose KV has been sent, or is not wanted any more."""
        del self.held[request]
        super()._release(request)
        if self.waiting and self._wake is None and not self._busy:
            self._wake_at(self.env.now)

    def turn_away(self, request: Request, reason: str) -> None:
        request.status = Status.REJECTED
        self.on_refused(request, reason)

    def _release(self, request: Request) -> None:
        self.held[request] = None

    def _end(self, request: Request, step: int, end: int) -> None:
        request.status = Status.COMPLETED
        request.last_token_ns = end
        self.on_prefilled(request)

    def _hand_over(self, then: Callable[[list[Request]], None]) -> None:
        for request in self.held:
            super()._release(request)
        self.held.clear()
        super()._hand_over(then)
