"""Batches on their way through the stages of a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from .flight import Flight
    from .request import Request


class StagesTimer(Protocol):
    """What a step takes on each stage; ``hwmodels.PipelineStepModel`` is one."""

    @property
    def stages(self) -> Sequence[object]: ...

    def stages_ns(
        self, n_decode: int, context_sum: int, longest: int,
        prefill: Sequence[tuple[int, int]], sampled: int, contexts: Sequence[int] | None = None,
        selecting: tuple[int, int] | None = None,
    ) -> list[int]:  # fmt: skip
        """Return the time of one step on every stage [ns]."""
        ...


class Pipeline:
    """Stages that batches pass one after the other, in the order in which they were composed.

    As many batches as there are stages are composed and not answered for at a time, as in vLLM (``batch_queue`` of
    ``EngineCore``). A request is in at most one of them with its latest token, since the next one is not known yet; the
    chunks of a prompt may be in several.

    Parameters
    ----------
    timer : what a step takes on each stage

    Attributes
    ----------
    depth : stages
    """

    def __init__(self, timer: StagesTimer) -> None:
        self.timer = timer
        self.depth = len(timer.stages)
        self._free_ns = [0] * self.depth

    def enter(self, now: int, counts: tuple[Any, ...]) -> tuple[int, int]:
        """Send a batch composed ``now`` through the stages; return when its share of the time starts, and its end [ns].

        A batch may be on its way for longer: of what it shares with the batch before it nothing is counted twice,
        so that the shares of all batches are the time in which any stage has work.
        """
        before = self._free_ns[-1]
        at = now
        for stage, duration in enumerate(self.timer.stages_ns(*counts)):
            at = self._free_ns[stage] = max(at, self._free_ns[stage]) + duration
        return max(now, before), at


def recall(flights: Sequence[Flight], request: Request) -> int:
    """Take a preempted request out of the batches under way; return the tokens that are lost with it [tokens].

    They are computed again, with the same result.
    """
    lost = 0
    for flight in flights:
        if request in flight.emitting:
            flight.emitting.remove(request)
            lost += 1
        if request in flight.last:
            flight.last.remove(request)
    return lost
