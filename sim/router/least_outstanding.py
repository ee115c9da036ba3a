"""Least outstanding: the replica with fewest requests that have not ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .base import ClusterView, Router, least

if TYPE_CHECKING:
    from ..engine.request import Request


class LeastOutstanding(Router):
    """Send each request to the replica with fewest requests waiting or running; equals take turns.

    What it optimises: waiting, where requests are alike: no replica idles while another has a line. What it
    starves: prefix caches (equal prompts are spread), and whoever joins few but long requests.
    Source: join the shortest queue (Winston, 1977); ``least_conn`` of nginx.
    """

    name = "least_outstanding"

    def __init__(self) -> None:
        self._last = -1

    def route(self, request: Request, view: ClusterView) -> int:
        self._last = least(view.ready, view.outstanding, self._last)
        return self._last
