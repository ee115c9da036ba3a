"""Adds up what the steps of a run were spent on, chunk by chunk, and what would have made them shorter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from ...hwmodels.account import StepAccount, StepColumns, account
from ...hwmodels.same import Same
from ...hwmodels.speculation import SpeculativeStepModel
from ...hwmodels.stepmodel import StepModel
from . import contention
from .attribution import CHARGED

if TYPE_CHECKING:
    from ...hwmodels.pipeline import PipelineStepModel
    from ...hwmodels.power import PowerModel
    from ...hwmodels.steptypes import StepDevice
    from .steprow import StepRow

    AnyStepModel = StepModel | SpeculativeStepModel | PipelineStepModel

Int64Array = npt.NDArray[np.int64]

PICO = 1e12
WORK: Mapping[str, tuple[str, float]] = {
    "useful_flop_seconds": ("useful_flop_seconds", PICO),
    "useful_hbm_bytes": ("useful_bytes", 1.0),
    "kernel_busy_s": ("kernel_busy_s", PICO),
    "sm_active_s": ("sm_active_s", PICO),
    "tensor_active_s": ("tensor_active_s", PICO),
    "dram_active_s": ("dram_active_s", PICO),
}
"""Sum -> column of ``StepAccount``, and the whole units in one of its own."""
ABOVE_IDLE = "power_above_idle_s"
MONITORED: tuple[str, ...] = ("kernel_busy_s", "sm_active_s", "tensor_active_s", "dram_active_s")
"""Sums that are kept of every step, too, as columns that end in ``_ns``."""
SAMPLE_STEPS = 64
LEVER_STEP = 0.1


class StepAccountant:
    """Attributes steps with the step model that timed them.

    What a step took longer because of KV transfers, waiting for them or sharing with them, is ``transfer``; what it
    took longer because others used the device too goes to the causes of the resource that was short.
    Work is added up in whole units (bytes, picoseconds), so that a sum does not depend on how a run was cut
    into rows.

    Parameters
    ----------
    model : the step model
    keep_steps : return per-step columns
    power : what a board draws, where that is known
    """

    def __init__(
        self, model: StepModel, *, keep_steps: bool = False, power: PowerModel | None = None
    ) -> None:
        self.model = model
        self.timer: AnyStepModel = model
        self.links = model.plan.group > 1
        self.keep_steps = keep_steps
        self.causes_ns = dict.fromkeys(CHARGED, 0)
        self.power = power
        self.waited_ns: dict[str, int] = {}
        self._work = dict.fromkeys(WORK, 0)
        self._above_idle = 0
        self._active: list[dict[str, Int64Array]] = []
        self._sample: list[_Sampled] = []
        self._stride = 1
        self._seen = 0

    def add(
        self, rows: Sequence[StepRow], steps: Int64Array, durations_ns: Int64Array
    ) -> dict[str, Int64Array] | None:
        """Take in rows, the steps of each, every step's duration [ns]; return per-step columns if asked."""
        waited_ns = np.fromiter(map(attrgetter("moved.waited_ns"), rows), np.int64, len(rows)).repeat(steps)
        own_ns = durations_ns - waited_ns
        contended = contention.waited_ns(rows, steps, own_ns)
        for resource, lost_ns in contended.items():
            own_ns = own_ns - lost_ns
            lost = int(lost_ns.sum())
            self.waited_ns[resource] = self.waited_ns.get(resource, 0) + lost
            if resource != "host":  # a kernel that waits is running
                self._work["kernel_busy_s"] += lost * round(WORK["kernel_busy_s"][1] / 1e9)
        self._active.clear()
        causes_ns = self._account(rows, steps, own_ns)
        spent = [*causes_ns.T, self._bubbles(causes_ns, own_ns), waited_ns]
        spent = contention.charge(spent, contended)
        for cause, nanoseconds in zip(CHARGED, spent, strict=True):
            self.causes_ns[cause] += int(nanoseconds.sum())
        self._pick(rows, steps, own_ns)
        if not self.keep_steps:
            return None
        kept = {f"{cause}_ns": nanoseconds for cause, nanoseconds in zip(CHARGED, spent, strict=True)}
        return kept | self._more_columns()

    def _account(self, rows: Sequence[StepRow], steps: Int64Array, durations_ns: Int64Array) -> Int64Array:
        """Add up what the steps did; return each one's time by cause, shape (steps, causes) [ns]."""
        columns = columns_of(rows, steps, durations_ns, self.model.needs_contexts)
        return self._add_up(account(self.model, columns))

    def _bubbles(self, causes_ns: Int64Array, durations_ns: Int64Array) -> Int64Array:
        """Return how long the device had nothing to do in each step; never on one that works alone [ns]."""
        return np.zeros_like(durations_ns)

    def _more_columns(self) -> dict[str, Int64Array]:
        """Return further per-step columns of the steps taken in last."""
        return self._active[0]

    def _add_up(self, found: StepAccount) -> Int64Array:
        for name, (column, units) in WORK.items():
            self._work[name] += int(
                np.rint(np.asarray(getattr(found, column)) * units).astype(np.int64).sum()
            )
        if self.power is not None:
            seconds = found.causes_ns.sum(axis=1) / 1e9
            drawn = self.power.above_idle_s(seconds, found.tensor_active_s, found.dram_active_s)
            self._above_idle += int(np.rint(drawn * PICO).astype(np.int64).sum())
        if self.keep_steps:
            nanoseconds = {name: np.rint(np.asarray(getattr(found, name)) * 1e9) for name in MONITORED}
            self._active.append(
                {f"{name.removesuffix('_s')}_ns": each.astype(np.int64) for name, each in nanoseconds.items()}
            )
        return found.causes_ns

    def _pick(self, rows: Sequence[StepRow], steps: Int64Array, durations_ns: Int64Array) -> None:
        """Keep every n-th step of the run, n doubled whenever twice too many have come together."""
        begun, self._seen = self._seen, self._seen + len(durations_ns)
        while self._seen > 2 * SAMPLE_STEPS * self._stride:
            self._sample = self._sample[::2]
            self._stride *= 2
        first = np.cumsum(steps) - steps
        picked = np.arange(-begun % self._stride, len(durations_ns), self._stride)
        owners = np.searchsorted(first, picked, side="right") - 1
        self._sample.extend(
            _Sampled(rows[owner], int(step - first[owner]), int(durations_ns[step]))
            for step, owner in zip(picked.tolist(), owners.tolist(), strict=True)
        )

    def work(self) -> dict[str, float]:
        """Return the sums over the run, of one GPU: seconds [s] and bytes [B]; power in seconds at its limit [s]."""
        found = {name: total / WORK[name][1] for name, total in self._work.items()}
        return found if self.power is None else found | {ABOVE_IDLE: self._above_idle / PICO}

    def elasticity(self, rebuild: Callable[[StepDevice], AnyStepModel]) -> dict[str, float]:
        """Return lever -> share of busy time saved per share by which the lever grows, of the steps that ran.

        Levers are ``hbm_bandwidth``, ``peak_flops`` (every dtype) and, where ranks communicate,
        ``link_bandwidth``: each is made ``LEVER_STEP`` better and a sample of the run's steps is timed again.

        Parameters
        ----------
        rebuild : makes the step model of the same scenario for another device
        """
        device = self.model.device
        levers: dict[str, Mapping[str, Any]] = {
            "hbm_bandwidth": {"hbm_bandwidth": device.hbm_bandwidth * (1 + LEVER_STEP)},
            "peak_flops": {"peak_flops": {k: v * (1 + LEVER_STEP) for k, v in device.peak_flops.items()}},
        }
        if self.links:
            levers["link_bandwidth"] = {"link_bandwidth": device.link_bandwidth * (1 + LEVER_STEP)}
        sample = [step for step in self._sample if step.row.n_decode or step.row.prefill]
        base = [step.timed_by(self.timer) for step in sample]
        found: dict[str, float] = {}
        for lever, change in levers.items():
            better = rebuild(cast("StepDevice", _Varied(device, lever, change)))
            saved = total = 0.0
            for step, before in zip(sample, base, strict=True):
                saved += step.duration_ns * (1 - step.timed_by(better) / before)
                total += step.duration_ns
            found[lever] = saved / total / LEVER_STEP if total else 0.0
        return found


class _Sampled(NamedTuple):
    """One step of a run: the ``offset``-th of those that ``row`` stands for."""

    row: StepRow
    offset: int
    duration_ns: int

    def timed_by(self, model: AnyStepModel) -> int:
        """Return what the step takes by a step model [ns]."""
        row = self.row
        if isinstance(model, SpeculativeStepModel) and row.queries == 1:
            model = model.plain
        context_sum, longest, contexts = row.at(self.offset)
        counts = (row.n_decode, context_sum, longest, row.prefill, row.sampled, contexts)
        if row.shared and isinstance(model, StepModel):
            return model.step_ns(*counts, shared=row.shared)
        if row.selected is None or isinstance(model, SpeculativeStepModel):
            return model.step_ns(*counts)
        return model.step_ns(*counts, row.selected)


def columns_of(
    rows: Sequence[StepRow], steps: Int64Array, durations_ns: Int64Array, needs_contexts: bool
) -> StepColumns:
    """Return rows as columns, for ``hwmodels.account``."""

    def column(name: str) -> Int64Array:
        return np.fromiter(map(attrgetter(name), rows), np.int64, len(rows))

    counts = np.fromiter(map(len, map(attrgetter("prefill"), rows)), np.int64, len(rows))
    prefills = chain.from_iterable(map(attrgetter("prefill"), rows))
    chunks = np.fromiter(chain.from_iterable(prefills), np.int64, 2 * int(counts.sum())).reshape(-1, 2)
    return StepColumns(
        steps=steps,
        n_decode=column("n_decode"),
        context_sum=column("context_sum"),
        longest=column("longest"),
        sampled=column("sampled"),
        prefill_starts=np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(counts))),
        prefill_new=np.ascontiguousarray(chunks[:, 0]),
        prefill_cached=np.ascontiguousarray(chunks[:, 1]),
        duration_ns=durations_ns,
        contexts=[row.contexts for row in rows] if needs_contexts else None,
        selecting=_selecting(rows),
        shared=column("shared") if any(map(attrgetter("shared"), rows)) else None,
    )


def _selecting(rows: Sequence[StepRow]) -> Int64Array | None:
    """Return what is chosen of prompts in each row, None where nothing ever is [tokens]."""
    if not any(map(attrgetter("selected"), rows)):
        return None
    return np.array([row.selected or (0, 0) for row in rows], dtype=np.int64)


class _Varied:
    """A device with some of its figures changed, which ``lever`` tells."""

    def __init__(self, device: StepDevice, lever: str, changes: Mapping[str, Any]) -> None:
        self._device = device
        self._key = (Same(device), lever)
        self._changes = changes

    def __getattr__(self, name: str) -> Any:
        if name in self._changes:
            return self._changes[name]
        return getattr(self._device, name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Varied) and other._key == self._key

    def __hash__(self) -> int:
        return hash(self._key)
