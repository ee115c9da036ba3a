"""A composed step on its way through the device, and what the engine needs of others to send it there."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

import numpy as np

from ..tiers.mover import NOTHING

if TYPE_CHECKING:
    from ...hwmodels.cascade import SharedPrefix
    from ...hwmodels.steptypes import Phase
    from ..device.resources import SharedDevice, Work
    from ..scheduler.base import ScheduledBatch
    from .engine import Engine
    from .request import Request
    from .stepload import StepLoad


class StepTimer(Protocol):
    """What a step takes; ``hwmodels.StepModel`` is one.

    ``context_sum`` and ``longest`` count the keys read by the sequences with one token, that token included; in a
    run they are those of the first step, and every context grows by one a step.
    """

    needs_contexts: bool

    def step_ns(
        self, n_decode: int, context_sum: int, longest: int,
        prefill: Sequence[tuple[int, int]], sampled: int, contexts: Sequence[int] | None = None,
    ) -> int:  # fmt: skip
        """Return the duration of one step [ns]; ``prefill`` holds (new tokens, tokens cached before)."""
        ...

    def decode_run_ns(
        self, n_decode: int, context_sum: int, longest: int, steps: int, contexts: Sequence[int] | None = None
    ) -> np.ndarray:
        """Return the durations of ``steps`` pure decode steps, shape (steps,) [ns]."""
        ...


class PhaseTimer(StepTimer, Protocol):
    """A timer that also says what a step demands of a device that others use too."""

    def phases(
        self, n_decode: int, context_sum: int, longest: int,
        prefill: Sequence[tuple[int, int]], sampled: int, contexts: Sequence[int] | None = None,
    ) -> Sequence[Phase]:  # fmt: skip
        """Return the phases of a step; their seconds sum to its duration."""
        ...

    def peak_loads(
        self, n_decode: int, context_sum: int, longest: int,
        prefill: Sequence[tuple[int, int]], sampled: int, contexts: Sequence[int] | None = None,
    ) -> Mapping[str, float]:  # fmt: skip
        """Return the largest share of each resource that any phase of a step holds [-]."""
        ...


class CascadeTimer(StepTimer, Protocol):
    """A timer of steps whose sequences may share a prefix that is read once; ``hwmodels.StepModel`` is one."""

    @property
    def shared_prefix(self) -> SharedPrefix | None: ...

    def decode_run_ns(
        self, n_decode: int, context_sum: int, longest: int, steps: int, contexts: Sequence[int] | None = None,
        shared: int = 0,
    ) -> np.ndarray:  # fmt: skip
        """Return the durations of ``steps`` pure decode steps; ``shared`` leading keys are read once [ns]."""
        ...


class SpeculativeTimer(StepTimer, Protocol):
    """A timer of steps that verify drafted tokens; ``hwmodels.SpeculativeStepModel`` is one.

    Its decoding sequences compute several tokens each; ``plain`` times steps without drafted ones.
    """

    @property
    def plain(self) -> StepTimer: ...

    def verify_run_ns(self, n_decode: int, context_sums: np.ndarray, longest: np.ndarray) -> np.ndarray:
        """Return the durations of steps of one batch with these contexts, shape (steps,) [ns]."""
        ...


class Arrivals(Protocol):
    """Brings requests to an engine; ``sim.source.Source`` is one."""

    def deliver(self, now: int) -> None:
        """Submit every request that is due by ``now`` [ns]."""
        ...

    def next_arrival_ns(self) -> int | None:
        """Return when the next request arrives, None if that is not known [ns]; only a hint for the length of runs."""
        ...


class Flight:
    """A composed step, or a run of equal ones, whose outputs have not been applied yet.

    Attributes
    ----------
    composed_ns, start_ns, end_ns : when it was composed, starts and ends (a run: its first start, its last end) [ns]
    step, steps : index of its first step, and how many steps it holds
    emitting : requests tracked one by one that get a token at its end
    last : requests that get their last token at its end
    late : requests preempted since it was composed, whose token still comes
    moved : what KV transfers did to it
    launch, work : on a shared device, how it is started there, and what it is once it has
    """

    __slots__ = (
        "composed_ns", "emitting", "end_ns", "last", "late", "launch", "moved", "start_ns", "step", "steps", "work",
    )  # fmt: skip

    def __init__(self, composed_ns: int, start_ns: int, end_ns: int, step: int, steps: int) -> None:
        self.composed_ns = composed_ns
        self.start_ns = start_ns
        self.end_ns = end_ns
        self.step = step
        self.steps = steps
        self.emitting: list[Request] = []
        self.last: list[Request] = []
        self.late: list[Request] = []
        self.moved = NOTHING
        self.launch: Callable[[], Work] | None = None
        self.work: Work | None = None


def launcher(
    device: SharedDevice, timer: PhaseTimer, step: tuple[Any, ...], duration: int
) -> Callable[[], Work]:
    """Return how to start a step on a shared device; its phases are asked for only if it meets other work."""
    return lambda: device.submit(lambda: timer.phases(*step), duration)


def peaks_of(timer: StepTimer, load: StepLoad) -> Callable[[], Mapping[str, float]]:
    """Return what says how much of each resource a step holds at most; its phases are looked at only if asked."""
    return lambda: cast("PhaseTimer", timer).peak_loads(*load.counts)


class Run:
    """The composed-ahead repetition of a decode step that has not been cut yet.

    Attributes
    ----------
    first : its first step
    durations_ns : what each step takes, of those that were cut off too [ns]
    bounds_ns : when its i-th step starts, and at last when the last one ends [ns]
    """

    __slots__ = ("bounds_ns", "durations_ns", "first")

    def __init__(self, first: Flight, durations_ns: list[int]) -> None:
        self.first = first
        self.durations_ns = durations_ns
        self.bounds_ns = list(accumulate(durations_ns, initial=first.start_ns))

    def __len__(self) -> int:
        return len(self.bounds_ns) - 1

    def due_ns(self, depth: int) -> int:
        """Return when the first composition after the run is made, one or two (``depth``) being under way then [ns]."""
        return self.bounds_ns[-depth]

    def shorten(self, arrival_ns: int, depth: int) -> bool:
        """End the run at the first composition that sees an arrival; False if it ends before anyway."""
        bounds, lag = self.bounds_ns, depth - 1
        # Composition m of the run is made at the end of its step m - 1 - lag, or at the run's start.
        first = lag and arrival_ns <= bounds[0]
        seen = 1 if first else bisect_left(bounds, arrival_ns, 1) + lag
        if seen >= len(bounds) - 1:
            return False
        del bounds[seen + 1 :]
        return True

    def composed_before(self, time_ns: int, depth: int) -> int:
        """Return how many steps after the first were composed before a time within the run [steps]."""
        bounds, lag = self.bounds_ns, depth - 1
        made = bisect_left(bounds, time_ns, 1) - 1 + (lag and bounds[0] < time_ns)
        return min(made, len(bounds) - 2)


class EngineState(NamedTuple):
    """How full an engine is: blocks in use of those there are, requests running and waiting."""

    used_blocks: int
    num_blocks: int
    running: int
    waiting: int


class Observer(Protocol):
    """Sees every step as it is composed and applied (oracle tests, timelines)."""

    def composed(self, engine: Engine, flight: Flight, batch: ScheduledBatch) -> None:
        """Look at the state right after a step was composed."""
        ...

    def repeated(self, engine: Engine, flight: Flight, starts_ns: np.ndarray, ends_ns: np.ndarray) -> None:
        """Look at a run: the steps that repeat ``flight`` after it."""
        ...

    def applied(self, engine: Engine, flight: Flight, finished: list[Request]) -> None:
        """Look at the state right after a step's outputs were applied."""
        ...
