"""Which variants of a public lane get a lane of their own: only those that no other lane can stand in for.

A device file is read by people too. Tables hold some hundred head layouts a GPU, and most of them take the time of the
lane that a step falls back to.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ..hwmodels.device import DeviceProfile
from ..hwmodels.lanes import Lane
from ..hwmodels.lanevariants import lane_choices
from .fit.base import FitResult, errors
from .predict import OPERATIONS
from .table import KernelTable

FEWEST_VARIANT_ROWS: Final = 300
"""A variant of a public lane with fewer rows takes the lane that stands in."""
MUCH_WORSE: Final = 1.4
"""A variant of a public lane is kept where the lane that stands in errs this much more, and one point."""
_WORTH: Final = 0.01
_COMPARED_ROWS: Final = 1500

Fits = Mapping[tuple[str, str], FitResult]


def stand_in(family: str, lane: str, done: Fits) -> FitResult | None:
    """Return the fit that a step takes where a variant has no lane of its own."""
    _, *choices = lane_choices(lane)
    return next((done[family, name] for name in choices if (family, name) in done), None)


def needless(device: DeviceProfile, fit: FitResult, rows: KernelTable, done: Fits) -> str:
    """Return why a variant needs no lane of its own: the one that stands in errs hardly more."""
    nearest = stand_in(fit.family, fit.lane, done)
    if nearest is None:
        return ""
    operation, rows = OPERATIONS[str(rows["op"][0])], rows.sample(_COMPARED_ROWS)
    lane = Lane(
        family=fit.family,
        lane=nearest.lane,
        params=nearest.params,
        stderr={},
        level="measured",
        source="",
        device=device.id,
        table=nearest.table,
    )
    off, own = errors(operation.predict(device, lane, rows) / rows.latency_us)["mape"], fit.train["mape"]
    if off > MUCH_WORSE * own + _WORTH:
        return ""
    return (
        f"{fit.family}/{fit.lane}: {nearest.lane} stands in for it"
        f" ({100 * off:.1f} % MAPE, its own {100 * own:.1f} %)"
    )
