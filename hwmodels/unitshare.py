"""Steps on a share of the compute units: prefill and decode beside each other on one device.

Streams that are given units of their own (SM partitions: green contexts, MPS percentages, masks) still share HBM. A
stream's step is timed as on a device that has only its units: matrix rate and waves follow them, HBM bandwidth and
last-level cache do not. A kernel then takes the (smooth) larger of its compute on fewer units and its memory time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, final

from .errors import MemboundError
from .stepmodel import StepModel
from .steptypes import Phase, StepDevice

Chunks = Sequence[tuple[int, int]]


@final
class UnitShare:
    """A device of which only some compute units may be used.

    Approximation: any number of units reaches the full HBM bandwidth, as half of an H100's about do; below a quarter
    of the units a stream's memory time is too short. No measured table of split streams bounds it.

    Parameters
    ----------
    device : the whole device
    share : of its compute units, rounded to whole ones, at least one [-]
    """

    def __init__(self, device: StepDevice, share: float) -> None:
        if not 0.0 < share <= 1.0:
            raise MemboundError(f"share of the compute units is {share}; allowed: above 0, at most 1")
        self._device = device
        self.n_sm = max(1, round(share * device.n_sm))
        self.unit_share = self.n_sm / device.n_sm
        self.peak_flops: Mapping[str, float] = {
            dtype: rate * self.unit_share for dtype, rate in device.peak_flops.items()
        }

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)


@final
class SplitTimer:
    """Times the steps of a stream that is held to a share of the compute units while others run.

    Alone it has all of them, and its steps take what ``whole`` says. On its share a kernel is at most as much slower
    as units are missing: the grid of blocks that fills all units can always run on fewer, in more rounds.

    Parameters
    ----------
    whole, part : the same step model on all units, and on a ``UnitShare``
    share : the stream's share of the compute units [-]
    """

    def __init__(self, whole: StepModel, part: StepModel, share: float) -> None:
        self.whole, self.part, self.share = whole, part, share
        self.needs_contexts = whole.needs_contexts
        self.step_ns, self.decode_run_ns = whole.step_ns, whole.decode_run_ns

    def phases(
        self,
        n_decode: int,
        context_sum: int,
        longest: int,
        prefill: Chunks,
        sampled: int,
        contexts: Sequence[int] | None = None,
    ) -> tuple[Phase, ...]:
        """Return the phases of a step, each with its time on the share; parameters as in ``StepModel.step_ns``."""
        step = (n_decode, context_sum, longest, prefill, sampled, contexts)
        return tuple(
            replace(phase, seconds_on_share=self._on_share(phase, held))
            for phase, held in zip(self.whole.phases(*step), self.part.phases(*step), strict=True)
        )

    def _on_share(self, whole: Phase, part: Phase) -> float:
        if whole.name == "host":
            return whole.seconds
        return min(max(part.seconds, whole.seconds), whole.seconds / self.share)
