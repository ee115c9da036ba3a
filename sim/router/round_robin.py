"""Round robin: every replica in turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .base import ClusterView, Router

if TYPE_CHECKING:
    from ..engine.request import Request


class RoundRobin(Router):
    """Send requests to the replicas in turn.

    What it optimises: nothing needs to be known of the replicas, and each gets the same number of requests.
    What it starves: whoever comes behind a long request, since work is not looked at.
    Source: textbook; the default of nginx and of most load balancers.
    """

    name = "round_robin"

    def __init__(self) -> None:
        self._last = -1

    def route(self, request: Request, view: ClusterView) -> int:
        ready = view.ready
        self._last = next((each for each in ready if each > self._last), ready[0])
        return self._last
