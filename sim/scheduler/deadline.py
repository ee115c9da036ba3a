"""Earliest deadline first, and no work on what is too late."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..fields import ScenarioError
from .base import ScheduledBatch, SchedulerView
from .reordered import Reordered, produced

if TYPE_CHECKING:
    from ..engine.request import Request
    from ..kvcache.base import KVAllocator

NS_PER_S = 1_000_000_000
TOO_LATE = "cannot meet its TTFT threshold"


class EarliestDeadlineFirst(Reordered):
    """vLLM's batching, the earliest deadline of a next token first; who cannot make it is not begun.

    Token n of a request is due ``ttft_s`` + n x ``tpot_s`` of its SLO class after its arrival; thresholds of other
    metrics play no part. When the first who waits could not have its first token in time even if it had the device
    to itself, it is rejected. Short of KV blocks, who is furthest from its deadline is preempted.

    What it optimises: the share of requests that meet their thresholds (goodput), also beyond saturation. What it
    starves: classes without ``ttft_s``, which come last, and whoever is late.
    Source: earliest deadline first (Liu and Layland, J. ACM 1973) with admission control, on the SLO classes of LLM
    serving as in Gong et al., "Past-Future Scheduler for LLM Serving under SLA Guarantees", ASPLOS 2025.

    Parameters
    ----------
    slo_classes : thresholds by class and metric [s]
    prefill_ns : what a prompt of so many tokens takes alone on the device [ns]; None takes it for nothing
    vllm : limits of the batch, as of ``vllm_v1``
    """

    name = "deadline"

    def __init__(
        self,
        *,
        slo_classes: Mapping[str, Mapping[str, float]],
        prefill_ns: Callable[[int], int] | None = None,
        **vllm: Any,
    ) -> None:
        super().__init__(**vllm)
        if not any("ttft_s" in thresholds for thresholds in slo_classes.values()):
            raise ScenarioError(
                "scheduler.name: deadline has no deadlines; set ttft_s of a class in slo.classes "
                "(slo: {classes: {default: {ttft_s: 500ms, tpot_s: 50ms}}})"
            )
        self.slo_classes = slo_classes
        self.prefill_ns = prefill_ns
        self.rank = self._due
        self.everyone_served = False

    def schedule(self, view: SchedulerView, allocator: KVAllocator) -> ScheduledBatch:
        waiting = view.waiting
        while waiting and view.now_ns >= self._hopeless_from(waiting.peek()):
            view.shed(waiting.peek(), TOO_LATE)
        return super().schedule(view, allocator)

    def next_change_ns(self, view: SchedulerView) -> int | None:
        """Return when the first who waits becomes too late: only then is it looked at without an event."""
        if not view.waiting:
            return None
        late = self._hopeless_from(view.waiting.peek())
        return None if math.isinf(late) else int(late)

    def _due(self, request: Request) -> float:
        """Return when a request's next token is due [ns]; infinity: never."""
        thresholds = self.slo_classes.get(request.slo_class, {})
        if "ttft_s" not in thresholds:
            return math.inf
        later = produced(request) * round(thresholds.get("tpot_s", 0.0) * NS_PER_S)
        return request.arrival_ns + round(thresholds["ttft_s"] * NS_PER_S) + later

    def _hopeless_from(self, request: Request) -> float:
        """Return the time from which a request could not be in time any more [ns]; infinity once it has run."""
        due = self._due(request)
        if request.first_scheduled_ns >= 0 or math.isinf(due):
            return math.inf
        if self.prefill_ns is None or request.block_hashes:
            return due  # what others have computed of its prompt may spare it all but one step
        return due - self.prefill_ns(request.input_tokens) + 1
