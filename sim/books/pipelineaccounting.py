"""Adds up what the stages of a pipeline spent their time on, and how long they had nothing to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ...hwmodels.pipelineaccount import account_stages
from .accounting import StepAccountant, columns_of

if TYPE_CHECKING:
    from ...hwmodels.pipeline import PipelineStepModel
    from ...hwmodels.power import PowerModel
    from .steprow import StepRow

Int64Array = npt.NDArray[np.int64]


class PipelineAccountant(StepAccountant):
    """Attributes the time in which any stage has work: what an average stage does in it, the rest is ``bubble``.

    The shares of time of consecutive steps are what ``sim.pipeline.Pipeline.enter`` says. Work that is done before
    its step's share begins (on the first stages, while the step before is on the last) is charged to the next shares
    with room for it; a bubble is what is left of a share without any work to charge.
    """

    def __init__(
        self, model: PipelineStepModel, *, keep_steps: bool = False, power: PowerModel | None = None
    ) -> None:
        super().__init__(model.stages[-1], keep_steps=keep_steps, power=power)
        self.timer = self.pipeline = model
        self.links = True
        self._owed_ns: Int64Array | None = None

    def _account(self, rows: Sequence[StepRow], steps: Int64Array, durations_ns: Int64Array) -> Int64Array:
        """Add up what the steps did; return each one's time by cause, shape (steps, causes) [ns]."""
        columns = columns_of(rows, steps, durations_ns, self.pipeline.needs_contexts)
        worked = self._add_up(account_stages(self.pipeline, columns))
        owed = np.zeros(worked.shape[1], dtype=np.int64) if self._owed_ns is None else self._owed_ns
        charged = np.empty_like(worked)
        for step, room in enumerate(durations_ns.tolist()):
            owed = owed + worked[step]
            charged[step] = _up_to(owed, room)
            owed = owed - charged[step]
        self._owed_ns = owed
        return charged

    def _bubbles(self, causes_ns: Int64Array, durations_ns: Int64Array) -> Int64Array:
        """Return what is left of each step's time once its causes are charged [ns]."""
        return durations_ns - causes_ns.sum(axis=1)


def _up_to(owed_ns: Int64Array, room_ns: int) -> Int64Array:
    """Return as much of every cause as fits, in proportion, in whole nanoseconds that sum to at most the room."""
    total = int(owed_ns.sum())
    return owed_ns if total <= room_ns else owed_ns * room_ns // total
