"""Least KV: the replica whose KV pool is emptiest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .base import ClusterView, Router, least

if TYPE_CHECKING:
    from ..engine.request import Request


class LeastKV(Router):
    """Send each request to the replica with the smallest share of its KV blocks in use.

    What it optimises: memory: long contexts are spread, so fewer requests are preempted. What it starves:
    replicas with many short requests, which look empty; a burst at one instant (blocks are taken only when
    requests are admitted) goes to where fewest are outstanding, which breaks ties.
    Source: the ``kv-cache-utilization-scorer`` of the Kubernetes Gateway API Inference Extension.
    """

    name = "least_kv"

    def __init__(self) -> None:
        self._last = -1

    def route(self, request: Request, view: ClusterView) -> int:
        usage = {each: view.kv_usage(each) for each in view.ready}
        emptiest = min(usage.values())
        self._last = least([e for e in view.ready if usage[e] == emptiest], view.outstanding, self._last)
        return self._last
