"""Random: any replica with equal chance."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..random import uniform_one
from .base import ClusterView, Router

if TYPE_CHECKING:
    from ..engine.request import Request


class Random(Router):
    """Send each request to a replica drawn with equal chance.

    What it optimises: no state at all, so any number of routers agree without talking. What it starves:
    whoever is sent where many others happen to be: each replica is a queue of its own.
    Source: textbook (n parallel M/G/1 queues).

    Parameters
    ----------
    seed : the scenario's; a request's draw depends on nothing but it and the request
    """

    name = "random"

    def __init__(self, *, seed: int = 0) -> None:
        self.seed = seed

    def route(self, request: Request, view: ClusterView) -> int:
        ready = view.ready
        return ready[int(uniform_one(self.seed, "router", request.index) * len(ready))]
