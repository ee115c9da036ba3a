"""Priorities that waiting makes up for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...hwmodels.units import Seconds
from .reordered import Reordered

if TYPE_CHECKING:
    from ..engine.request import Request

NS_PER_S = 1_000_000_000


class PriorityWithAging(Reordered):
    """vLLM's batching, the lowest priority number first, where a number counts as so many seconds of waiting.

    Because all who wait age alike, the order of two never changes: it is that of arrival times shifted by
    ``priority`` x ``aging_s``. Short of KV blocks, the last in that order is preempted.

    What it optimises: latency of requests that matter more. What it starves: nobody for ever; who is n levels
    lower yields to those who arrive up to n x ``aging_s`` later.
    Source: aging as in operating systems (Silberschatz et al., *Operating System Concepts*, CPU scheduling);
    priorities as vLLM's ``scheduling_policy: priority``, which does not age.

    Parameters
    ----------
    aging_s : waiting that makes up for one level [s]
    vllm : limits of the batch, as of ``vllm_v1``
    """

    name = "priority"

    def __init__(self, *, aging_s: Seconds = 30.0, **vllm: Any) -> None:
        super().__init__(**vllm)
        self.aging_ns = round(aging_s * NS_PER_S)
        self.rank = self._due

    def _due(self, request: Request) -> int:
        """Return when a request would have had to arrive at priority 0 to be in its place [ns]."""
        return request.arrival_ns + request.priority * self.aging_ns
