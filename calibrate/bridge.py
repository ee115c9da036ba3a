"""From the torch lanes of a new device to the lanes of an engine, by the ratio that a reference device has both of.

A user times torch on a new device and simulates an engine. Parameter of the engine's lane there = parameter of the
reference's engine lane x (new device's torch lane / reference's torch lane). The engine's 16-bit matrix products *are*
torch's linear calls: that bridge is 1, and the torch lane itself becomes the engine's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from ..hwmodels.device import DeviceProfile
from ..hwmodels.lanes import FittedLane, FittedParameter
from ..hwmodels.lanevariants import lane_choices
from ..hwmodels.spreads import REGIMES, residual_spread
from .errors import CalibrationError

OURS: Final = "torch"
SAME_CALLS: Final = ("gemm",)
"""Families whose engine lane makes torch's own calls: the bridge is 1."""
_MODES: Final = ("hm", "hs", "split", "by_m", "absorbed", "packed", "single", "rows", "ks", "d", "qr")
"""Parameters that say how a kernel works: they are the engine's, whatever torch does."""
_OWN_KERNELS: Final = ("_triton_paged",)
"""Ends of lanes of our own kernels, which stand for an engine's better than torch's plain operations do."""


@dataclass(frozen=True, slots=True)
class Bridged:
    """One lane that was asked for.

    Attributes
    ----------
    family, lane : of the engine
    made : the bridged lane, or None
    why : how it was bridged, or why it could not be
    """

    family: str
    lane: str
    made: FittedLane | None
    why: str


def bridge_lane(
    family: str, *, torch: FittedLane, reference_torch: FittedLane | None, reference_engine: FittedLane | None
) -> FittedLane:
    """Return an engine's lane on a device of which only torch was timed.

    Relative errors of the three lanes add in squares, and so do residuals by regime: what the new device's torch lane,
    the reference's and its engine's leave unexplained all stand between this lane and the truth. A measured table (of
    all-reduce sizes) does not carry over: it is of the reference's link.

    Parameters
    ----------
    family : kernel family of all three
    torch : torch's lane of the new device
    reference_torch : torch's lane of the reference; not needed where the engine makes torch's calls
    reference_engine : the engine's lane of the reference; not needed there either

    Raises
    ------
    CalibrationError : a lane is missing, or the lanes share no parameter

    Examples
    --------
    >>> def lane(t0_us, stderr):
    ...     return FittedLane(level="measured", source="timings", residual={"all": 0.03},
    ...                       parameters={"t0_us": FittedParameter(value=t0_us, stderr=stderr)})
    >>> found = bridge_lane("decode_attention", torch=lane(20.0, 0.6), reference_torch=lane(10.0, 0.4),
    ...                     reference_engine=lane(9.0, 0.0))
    >>> found.level, found.parameters["t0_us"].value, round(found.parameters["t0_us"].stderr, 3)
    ('bridged', 18.0, 0.9)
    """
    if family in SAME_CALLS:
        return torch.model_copy(
            update={
                "level": "bridged",
                "source": f"torch lane, the engine makes the same calls; {torch.source}",
            }
        )
    if reference_torch is None or reference_engine is None:
        missing = "torch" if reference_torch is None else "engine"
        raise CalibrationError(f"{family}: the reference has no {missing} lane of it")
    ratios = _ratios(torch, reference_torch)
    names = [name for name in reference_engine.parameters if name in ratios and name not in _MODES]
    if not names:
        raise CalibrationError(
            f"{family}: the torch lanes share no parameter with the engine's; "
            f"torch has {', '.join(torch.parameters)}, the engine {', '.join(reference_engine.parameters)}"
        )
    parameters = {
        name: _scaled(each, ratios[name]) if name in names else each
        for name, each in reference_engine.parameters.items()
    }
    return FittedLane(
        level="bridged",
        source=(
            f"the reference's engine lane x (torch here / torch there); engine: {reference_engine.source}; "
            f"torch here: {torch.source}; torch there: {reference_torch.source}"
        ),
        run=torch.run,
        parameters=parameters,
        correlation=reference_engine.correlation,
        residual=_residuals(family, reference_engine, torch, reference_torch),
        hull=dict(reference_engine.hull),
    )


def bridge_device(
    device: DeviceProfile, reference: DeviceProfile, engine: str = "vllm"
) -> tuple[DeviceProfile, tuple[Bridged, ...]]:
    """Return a device with every lane of an engine that can be bridged, and what became of each.

    Lanes of that engine that were measured on the device are left alone.

    Parameters
    ----------
    device : has torch lanes; its own file's, not borrowed ones
    reference : has torch lanes and the engine's
    engine : software lane to make
    """
    found = tuple(_bridged(device, reference, engine))
    fitted = {family: dict(lanes) for family, lanes in device.fitted.items()}
    for each in found:
        if each.made is not None:
            fitted.setdefault(each.family, {})[each.lane] = each.made
    return device.model_copy(update={"fitted": fitted}), found


def _bridged(device: DeviceProfile, reference: DeviceProfile, engine: str) -> Iterable[Bridged]:
    families = dict.fromkeys((*device.fitted, *reference.fitted))
    for family in families:
        here, there = device.fitted.get(family, {}), reference.fitted.get(family, {})
        lanes = [name for name in there if _software(name) == engine]
        if family in SAME_CALLS:
            lanes = [engine + name.removeprefix(OURS) for name in here if _software(name) == OURS] or lanes
        for lane in lanes:
            own = here.get(lane)
            if own is not None and own.level == "measured":
                yield Bridged(family, lane, None, f"{device.id} has it, measured")
                continue
            yield _one(family, lane, here, there, device.id, reference.id)


def _one(
    family: str,
    lane: str,
    here: Mapping[str, FittedLane],
    there: Mapping[str, FittedLane],
    device: str,
    reference: str,
) -> Bridged:
    """Bridge one lane by the nearest torch lane that both devices have."""
    suffix = lane.partition("_")[2]
    choices = lane_choices(f"{OURS}_{suffix}" if suffix else OURS)
    names = [name + kernel for name in choices for kernel in (*_OWN_KERNELS, "")]
    torch = next((name for name in names if name in here), None)
    if torch is None:
        return Bridged(family, lane, None, f"{device} has no torch lane of it")
    if family not in SAME_CALLS:
        torch = next((name for name in names if name in here and name in there), None)
        if torch is None:
            return Bridged(family, lane, None, f"{reference} has no torch lane of it")
    try:
        made = bridge_lane(
            family, torch=here[torch], reference_torch=there.get(torch), reference_engine=there.get(lane)
        )
    except CalibrationError as error:
        return Bridged(family, lane, None, str(error))
    return Bridged(
        family, lane, made, f"by {torch}" + (", 1:1" if family in SAME_CALLS else f" and {reference}")
    )


def _software(lane: str) -> str:
    return lane.partition("_")[0]


def _ratios(torch: FittedLane, there: FittedLane) -> dict[str, tuple[float, float]]:
    """Return new over reference by parameter, each with its relative error."""
    found: dict[str, tuple[float, float]] = {}
    for name, new in torch.parameters.items():
        old = there.parameters.get(name)
        if old is not None and new.value > 0.0 and old.value > 0.0:
            found[name] = new.value / old.value, math.hypot(new.stderr / new.value, old.stderr / old.value)
    return found


def _scaled(engine: FittedParameter, ratio: tuple[float, float]) -> FittedParameter:
    factor, relative = ratio
    value = engine.value * factor
    own = engine.stderr / engine.value if engine.value else 0.0
    return FittedParameter(value=value, stderr=abs(value) * math.hypot(own, relative))


def _residuals(family: str, engine: FittedLane, *torch: FittedLane) -> dict[str, float]:
    """Return the engine's residual of each regime with torch's, of that regime or its widest, in squares."""
    own, others = _stated(family, engine), [_stated(family, each) for each in torch]
    return {
        name: math.sqrt(sd**2 + sum(each.get(name, max(each.values())) ** 2 for each in others))
        for name, sd in own.items()
    }


def _stated(family: str, lane: FittedLane) -> dict[str, float]:
    """Return a lane's residual by regime; the usual one of its family and level where it states none."""
    usual = residual_spread(family, lane.level)
    return dict(lane.residual) or {name: usual.of(name) for name in REGIMES if usual.of(name)}
