"""Fitted lanes: what one kernel family of one software lane reaches on one device, and how sure that is.

A lane is fitted (or starts from a prior) on one device and holds dimensionless numbers and times only, so
that another device of the same architecture can borrow it and swap nothing but its datasheet. Parameter names
are the symbols of the timing functions; a time ends in its unit (``t0_us``, ``te_ns``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Level = Literal["measured", "bridged", "prior", "transferred_same_arch", "transferred_cross_arch"]


class FittedParameter(BaseModel):
    """One number of a lane: estimate, standard error in the same unit, and run (default: the lane's)."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    value: float
    stderr: float = Field(ge=0)
    run: str | None = None


class LatencyTable(BaseModel):
    """Measured latency by size, for log-log interpolation where a table beats any form (all-reduce).

    Attributes
    ----------
    axis : what ``sizes`` counts (``bytes``)
    sizes : grid, ascending
    latency_us : per group size, one latency for each size [us]; None where that size was not measured
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    axis: Literal["bytes"] = "bytes"
    sizes: tuple[float, ...]
    latency_us: dict[int, tuple[float | None, ...]]

    @model_validator(mode="after")
    def _rows_match_the_grid(self) -> LatencyTable:
        if any(later <= earlier for earlier, later in zip(self.sizes, self.sizes[1:], strict=False)):
            raise ValueError("sizes must ascend")
        for group, row in self.latency_us.items():
            if len(row) != len(self.sizes):
                raise ValueError(f"latency_us[{group}] has {len(row)} values for {len(self.sizes)} sizes")
        return self

    def stretched(self, ratio: float) -> LatencyTable:
        """Return the table of a link on which what a message adds to the shortest takes ``ratio`` times as long."""
        rows: dict[int, tuple[float | None, ...]] = {}
        for group, row in self.latency_us.items():
            fixed = min(time for time in row if time is not None)
            rows[group] = tuple(None if time is None else fixed + ratio * (time - fixed) for time in row)
        return self.model_copy(update={"latency_us": rows})

    def series(self, group: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return the sizes and latencies measured for one group size, without the gaps ([B], [us])."""
        pairs = [
            (size, t) for size, t in zip(self.sizes, self.latency_us[group], strict=True) if t is not None
        ]
        return tuple(size for size, _ in pairs), tuple(t for _, t in pairs)


class FittedLane(BaseModel):
    """One lane as a device file holds it, in the form in which a calibration publishes it.

    Attributes
    ----------
    level : ``measured`` (fitted on this device), ``bridged`` (by another lane's ratio) or ``prior``
    source : where the numbers come from
    run : the calibration run that gave them
    parameters : the fitted numbers by symbol
    correlation : correlation matrix in the order of ``parameters``; None means independent
    residual : residual spread of log(time) by regime [-]
    local : how the spread of a single call differs from its regime's (``calibrate/localspread.py``); steps, of many
        calls, take the regime's
    hull : calibrated range by axis (``m: [1, 8192]``)
    table : measured table that is preferred inside its range
    growth : how fast the residual grows outside the hull, where the fit could tell [per unit of ln]
    inside_engine : timed within the steps of a running engine; what kernels lose there against a loop of one
        kernel is in the numbers
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    level: Literal["measured", "bridged", "prior"]
    source: str
    run: str | None = None
    parameters: dict[str, FittedParameter]
    correlation: tuple[tuple[float, ...], ...] | None = None
    residual: dict[str, float] = {}
    local: dict[str, float] = {}
    hull: dict[str, tuple[float, float]] = {}
    table: LatencyTable | None = None
    growth: float | None = Field(default=None, ge=0)
    inside_engine: bool = False

    @model_validator(mode="after")
    def _correlation_is_square(self) -> FittedLane:
        n = len(self.parameters)
        if self.correlation is not None and [len(row) for row in self.correlation] != [n] * n:
            raise ValueError(f"correlation must be {n} x {n}, one row for each parameter in order")
        return self


@dataclass(frozen=True, slots=True)
class Lane:
    """A lane as the timing functions use it, with where it came from.

    Attributes
    ----------
    family : kernel family (``gemm``, ``decode_attention``, ``moe_fp8_block``, ...)
    lane : software lane that was taken (``vllm``, ``trtllm``, ``sglang``, ``torch``)
    params : value by symbol [-, or the unit in the name]
    stderr : standard error by symbol [as the value]
    level : how well this device's numbers are known
    source : where they come from
    device : id of the device they were fitted on
    correlation, residual, local, hull, table, growth, inside_engine : see ``FittedLane``
    """

    family: str
    lane: str
    params: Mapping[str, float]
    stderr: Mapping[str, float]
    level: Level
    source: str
    device: str
    correlation: tuple[tuple[float, ...], ...] | None = None
    residual: Mapping[str, float] = field(default_factory=dict[str, float])
    local: Mapping[str, float] = field(default_factory=dict[str, float])
    hull: Mapping[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])
    table: LatencyTable | None = None
    growth: float | None = None
    inside_engine: bool = False


def as_lane(fitted: FittedLane, family: str, lane: str, device: str) -> Lane:
    """Turn a lane of a device file into the form that the timing functions read."""
    return Lane(
        family=family,
        lane=lane,
        params={name: parameter.value for name, parameter in fitted.parameters.items()},
        stderr={name: parameter.stderr for name, parameter in fitted.parameters.items()},
        level=fitted.level,
        source=fitted.source,
        device=device,
        correlation=fitted.correlation,
        residual=fitted.residual,
        local=fitted.local,
        hull=fitted.hull,
        table=fitted.table,
        growth=fitted.growth,
        inside_engine=fitted.inside_engine,
    )
