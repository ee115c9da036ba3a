"""Time of an all-reduce over the devices of a group: a measured table where there is one, else two regimes.

Small messages are sent to everybody at once, ``a0 + a1 (N-1) + (N-1) Z/(bl W)``; large ones go round a ring,
``c0 + c1 (N-1) + 2 (N-1)/N Z/(bb W)``, with W the link's bandwidth in one direction. The library takes the
faster: a smooth minimum of the two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, cast

import numpy as np

from .form import MICRO, Array, Chip, KernelTime, LaneLike, Value


class SizeTable(Protocol):
    """A lane's measured table by message size."""

    @property
    def latency_us(self) -> Mapping[int, object]:
        """Measured rows by group size."""
        ...

    def series(self, group: int) -> tuple[Sequence[float], Sequence[float]]:
        """Return sizes [B] and latencies [us] of one group size, both ascending in size."""
        ...


@dataclass(frozen=True, slots=True)
class AllReduceParams:
    """Fitted parameters of one all-reduce lane.

    Attributes
    ----------
    a0, a1 : fixed time of the small regime, and extra per further device [s]
    bl : share of the link in the small regime [-]
    c0, c1, bb : the same of the large regime
    q : sharpness of the minimum [-]
    tables : measured (bytes, seconds) by group size, both ascending; preferred, and extended beyond their
        ends by the form's own growth
    """

    a0: float
    a1: float
    bl: float
    c0: float
    c1: float
    bb: float
    q: float = 4.0
    tables: Mapping[int, tuple[Array, Array]] = field(default_factory=dict[int, tuple[Array, Array]])

    @classmethod
    def from_lane(cls, lane: LaneLike) -> AllReduceParams:
        """Read a device's ``allreduce`` lane, with its measured table where it has one."""
        p = lane.params
        table = cast("SizeTable | None", getattr(lane, "table", None))
        tables: dict[int, tuple[Array, Array]] = {}
        if table is not None:
            for group in table.latency_us:
                sizes, latencies = table.series(group)
                tables[group] = (np.array(sizes, dtype=np.float64), np.array(latencies) * MICRO)
        return cls(
            a0=p["a0_us"] * MICRO,
            a1=p["a1_us"] * MICRO,
            bl=p["bl"],
            c0=p["c0_us"] * MICRO,
            c1=p["c1_us"] * MICRO,
            bb=p["bb"],
            q=p.get("q", 4.0),
            tables=tables,
        )


def allreduce_seconds(chip: Chip, params: AllReduceParams, message: Value, group: int) -> Value:
    """Return the time to sum ``message`` bytes over ``group`` devices [s]; 0 for a group of one.

    With a measured table the form is scaled by measured over form, interpolated in log bytes and kept beyond the
    table's ends. Between two points it bends as the form does: straight lines of log time over log bytes lie above
    it wherever fixed time gives way to bandwidth (inner sizes left out of 20 lanes' tables: 1.7 % too long on average
    and 6.8 % off, with the form's bend 0.1 and 6.1; no lane got worse).
    """
    size = np.maximum(np.asarray(message, dtype=np.float64), 1.0)
    if group <= 1:
        return 0.0 * size
    form = _two_regimes(chip, params, size, group)
    if group not in params.tables:
        return form
    sizes, seconds = params.tables[group]
    over_form = np.log(seconds / _two_regimes(chip, params, sizes, group))
    return form * np.exp(np.interp(np.log(size), np.log(sizes), over_form))


BLOCKS = 36.0
"""Thread blocks of an all-reduce, one a compute unit (512 threads; vLLM ``custom_all_reduce.cuh``, ``kMaxBlocks``)."""


def allreduce_time(chip: Chip, params: AllReduceParams, message: Value, group: int) -> KernelTime:
    """Return ``allreduce_seconds`` as a kernel time: communication throughout, fixed time included.

    Its demands: the link for as long as it runs; ``BLOCKS`` compute units; HBM for what it sends, which is read there,
    and for what it receives, which is written.

    Approximation: a large message holds the units that a small one does (NCCL's rings take 16 to 32).
    """
    seconds = allreduce_seconds(chip, params, message, group)
    moved = 4.0 * (group - 1) / max(group, 1) * np.asarray(message) / chip.bandwidth
    return KernelTime(
        communication=seconds,
        hbm_demand=np.minimum(moved, seconds),
        compute_demand=seconds * min(BLOCKS / chip.units, 1.0),
        link_demand=seconds,
    )


def _two_regimes(chip: Chip, p: AllReduceParams, size: Array, group: int) -> Array:
    """Return the smooth minimum of the small and the large regime [s]."""
    others, link = group - 1, chip.link_bandwidth
    small = p.a0 + p.a1 * others + others * size / (p.bl * link)
    large = p.c0 + p.c1 * others + 2.0 * others / group * size / (p.bb * link)
    return np.asarray(1.0 / ((1.0 / small) ** p.q + (1.0 / large) ** p.q) ** (1.0 / p.q))
