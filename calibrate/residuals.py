"""The rows of fitted lanes beside their predictions: what the charts and the table of a calibration report show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

from ..hwmodels.device import DeviceProfile
from ..hwmodels.steptypes import chip_of
from .fit.base import Array, FitResult, errors
from .fitting import lanes_in, with_fits
from .predict import OPERATIONS, Group, group_model, groups_of
from .run import CalibrationRun
from .screen import screen
from .splits import part
from .table import COUNTS, KernelTable
from .uncertainty import of_lane

Role = Literal["fitted", "held out"]
ROLES: Final[tuple[Role, ...]] = ("fitted", "held out")
POINTS: Final = 400
"""Most points of a lane and role that are kept; errors are those of all rows."""
_SHAPE: Final = tuple(name for name in COUNTS if name != "n_samples")


@dataclass(frozen=True, slots=True)
class RoleErrors:
    """Errors of the rows of one role; fractions, predicted/measured - 1.

    Attributes
    ----------
    n : rows
    mape, median_ape, p90_ape, bias : mean, median and 90th percentile of the absolute error, and the mean error
    coverage_90 : share of the rows (of a sample) inside their 90 % interval
    """

    n: int
    mape: float
    median_ape: float
    p90_ape: float
    bias: float
    coverage_90: float


@dataclass(frozen=True, slots=True)
class LaneResiduals:
    """One fitted lane against its rows.

    Attributes
    ----------
    fit : the fit
    errors : by role; a role without rows is missing
    points : one row a timing: ``role``, ``op``, ``regime``, ``shape``, ``measured_us``, ``predicted_us``,
        ``error`` (predicted/measured - 1) and ``inside`` (of the 90 % interval)
    """

    fit: FitResult
    errors: Mapping[Role, RoleErrors]
    points: tuple[Mapping[str, Any], ...]

    @property
    def name(self) -> str:
        """Return family and lane."""
        return f"{self.fit.family} / {self.fit.lane}"


def by_split(table: KernelTable) -> dict[Role, KernelTable]:
    """Return the rows of a public table that fits see, and those that the frozen splits keep for judging."""
    fitted = part(table)["train"]
    return {"fitted": table.where(fitted), "held out": table.where(~fitted)}


def residuals_of(
    run: CalibrationRun, device: DeviceProfile, rows: Mapping[Role, KernelTable]
) -> tuple[LaneResiduals, ...]:
    """Return every fit of a run with the rows of its lane.

    Parameters
    ----------
    run : the fits
    device : whose datasheet; its lanes become those of the run
    rows : timings by role, impossible ones are left out; a fit without rows gets no errors and no points
    """
    profile = with_fits(device, run)
    parts: dict[tuple[str, str], list[_Part]] = {(fit.family, fit.lane): [] for fit in run.fits}
    for role, table in rows.items():
        for family, lane, own in lanes_in(screen(table, device).table):
            if (family, lane) in parts:
                groups = (each for each in groups_of(profile, own) if isinstance(each, Group))
                parts[family, lane] += [_part(profile, each, role, own.take(each.rows)) for each in groups]
    return tuple(_lane(fit, parts[fit.family, fit.lane]) for fit in run.fits)


def held_against(device: DeviceProfile, table: KernelTable) -> tuple[LanePoints, ...]:
    """Return timings beside what the lanes of a device say of them; impossible ones are left out.

    Parameters
    ----------
    device : its own lanes are held against the timings
    table : timings that no fit of these lanes has seen
    """
    found: list[LanePoints] = []
    for family, lane, own in lanes_in(screen(table, device).table):
        groups = (each for each in groups_of(device, own) if isinstance(each, Group))
        parts = [_part(device, each, "held out", own.take(each.rows)) for each in groups]
        if parts:
            points = tuple(point for part in parts for point in part.points)
            found.append(LanePoints(family, lane, device.lane(family, lane).level, _errors(parts), points))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class LanePoints:
    """A lane of a device against timings.

    Attributes
    ----------
    family, lane : which
    level : how well its parameters are known
    errors : of all timings
    points : as in ``LaneResiduals``
    """

    family: str
    lane: str
    level: str
    errors: RoleErrors
    points: tuple[Mapping[str, Any], ...]

    @property
    def name(self) -> str:
        """Return family and lane."""
        return f"{self.family} / {self.lane}"


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows of one operation and role: their ratios, and a sample with intervals."""

    role: Role
    ratio: Array
    inside: Array
    points: tuple[Mapping[str, Any], ...]


def _part(device: DeviceProfile, group: Group, role: Role, rows: KernelTable) -> _Part:
    ratio = group_model(device, group, rows)(group.lane.params) / rows.latency_us
    sample, operation = rows.sample(POINTS), OPERATIONS[group.op]
    regimes = operation.regimes(sample, chip_of(device))
    with np.errstate(all="ignore"):
        predicted = of_lane(
            device,
            group.lane,
            group_model(device, group, sample),
            regimes=regimes,
            axes=operation.axes(sample),
        )
    low, high = predicted.interval()
    inside = (sample.latency_us >= low) & (sample.latency_us <= high)
    points = zip(
        _shapes(sample),
        regimes.tolist(),
        sample.latency_us.tolist(),
        predicted.time.tolist(),
        inside.tolist(),
        strict=True,
    )
    names = ("shape", "regime", "measured_us", "predicted_us", "inside")
    made = [dict(zip(names, point, strict=True)) for point in points]
    return _Part(
        role,
        ratio,
        inside,
        tuple(
            {
                "role": role,
                "op": group.op,
                **point,
                "error": point["predicted_us"] / point["measured_us"] - 1.0,
            }
            for point in made
        ),
    )


def _shapes(rows: KernelTable) -> Iterator[str]:
    """Yield the sizes of each row in words, after its dtype."""
    columns = {name: rows[name].tolist() for name in _SHAPE}
    for i, dtype in enumerate(rows["dtype"].tolist()):
        sizes = (f"{name} {values[i]:,}" for name, values in columns.items() if values[i] >= 0)
        yield ", ".join([dtype, *sizes] if dtype else sizes)


def _lane(fit: FitResult, parts: list[_Part]) -> LaneResiduals:
    found: dict[Role, RoleErrors] = {}
    for role in ROLES:
        mine = [each for each in parts if each.role == role]
        if mine:
            found[role] = _errors(mine)
    return LaneResiduals(fit, found, tuple(point for each in parts for point in each.points))


def _errors(parts: list[_Part]) -> RoleErrors:
    ratio, inside = (np.concatenate([getattr(part, name) for part in parts]) for name in ("ratio", "inside"))
    return RoleErrors(len(ratio), **errors(ratio), coverage_90=float(np.mean(inside)))
