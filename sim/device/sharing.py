"""Max-min fair sharing of progress, as pure functions: phases with their demands, and the rates they get.

Every active phase advances at a *rate* in [0, 1], the share of its own full speed. The rates rise together
until a resource is full; the phases that use it stay there, the others rise on (progressive filling:
Bertsekas and Gallager, *Data Networks*, 6.5.2, with progress in the place of bandwidth). Where a rate is
below 1 some resource is full, and no phase asks for more than all of it, so the rates sum to at least 1:
sharing is never slower than taking turns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from ...hwmodels.errors import MemboundError, unknown
from ...hwmodels.steptypes import Phase

_RELATIVE = 1e-12  # shares closer than this are equal: float noise, not a bottleneck


class ResourceError(MemboundError):
    """A phase that no device with these capacities can run in its stated time."""


class Plan(NamedTuple):
    """Phases in the terms of the device, one entry a phase (a tuple: made for every step, cheaply).

    ``bounds`` is where it ends [ns of the work's own time]; ``loads`` the share of each resource that it
    holds at full speed; ``demands`` [resource-seconds]; ``speeds`` its full speed on its share of the
    compute units, over that on all of them; None where it has no units of its own.
    """

    bounds: tuple[int, ...]
    loads: tuple[Mapping[str, float], ...]
    demands: tuple[Mapping[str, float], ...]
    speeds: tuple[float | None, ...] = (None,)


class FairRate(NamedTuple):
    """The rate of one phase, and the resource that keeps it from its full speed; None at full speed."""

    rate: float
    short: str | None


def fair_rates(loads: Sequence[Mapping[str, float]], capacities: Mapping[str, float]) -> list[float]:
    """Return the max-min fair rate of each phase; exact sums make it independent of their order.

    Parameters
    ----------
    loads : for each phase, the share of a resource it holds at full speed; each at most the capacity
    capacities : what there is of each resource

    >>> fair_rates([{"hbm": 1.0}, {"hbm": 0.6, "link": 0.2}, {"link": 0.5}], {"hbm": 1, "link": 1})
    [0.625, 0.625, 1.0]
    """
    return [found.rate for found in fair_shares(loads, capacities)]


def fair_shares(loads: Sequence[Mapping[str, float]], capacities: Mapping[str, float]) -> list[FairRate]:
    """Return ``fair_rates``, each with the resource that it waits for.

    >>> fair_shares([{"hbm": 1.0}, {"hbm": 1.0, "link": 1.0}, {"compute": 0.5}], {"hbm": 1, "link": 1})[1:]
    [FairRate(rate=0.5, short='hbm'), FairRate(rate=1.0, short=None)]
    """
    found = [FairRate(1.0, None)] * len(loads)
    rising = set(range(len(loads)))
    floor = 0.0
    while rising:
        levels: dict[str, float] = {}
        for name, capacity in capacities.items():
            wanted = math.fsum(loads[i].get(name, 0.0) for i in rising)
            held = math.fsum(
                loads[i].get(name, 0.0) * found[i].rate for i in range(len(loads)) if i not in rising
            )
            if held + wanted > capacity * (1.0 + _RELATIVE):
                levels[name] = (capacity - held) / wanted
        if not levels:
            break
        floor = max(floor, min(levels.values()))  # levels only rise; float noise may say otherwise
        full = [name for name, level in levels.items() if level <= floor]
        stopped: set[int] = set()
        for i in rising:
            short = next((name for name in full if loads[i].get(name, 0.0) > 0.0), None)
            if short is not None:
                found[i] = FairRate(floor, short)
                stopped.add(i)
        rising -= stopped
    return found


def lay_out(phases: Sequence[Phase], capacities: Mapping[str, float], duration_ns: int | None = None) -> Plan:
    """Check phases and put their boundaries on whole nanoseconds.

    Raises
    ------
    ResourceError
        For a length that is negative or not finite, an unknown resource, a demand that is negative or above
        capacity x seconds, or a ``duration_ns`` that is not the phases' sum (rounding aside).
    """
    loads = [
        _load(phase, f"phase {phase.name!r} ({i} of {len(phases)})", capacities)
        for i, phase in enumerate(phases, 1)
    ]
    bounds = [round(end * 1e9) for end in accumulate(float(phase.seconds) for phase in phases)]
    if duration_ns is not None:
        total = bounds[-1] if bounds else 0
        if abs(duration_ns - total) > len(bounds):
            raise ResourceError(f"duration of {duration_ns} ns is not the phases' sum of {total} ns")
        bounds = [*(min(bound, duration_ns) for bound in bounds[:-1]), duration_ns][: len(bounds)]
    return Plan(
        tuple(bounds),
        tuple(loads),
        tuple(phase.demands for phase in phases),
        tuple(_speed_on_share(phase) for phase in phases),
    )


def beside_others(plan: Plan, phase: int) -> tuple[float, Mapping[str, float]]:
    """Return a phase's full speed beside others, over that alone, and what it then holds of each resource.

    With compute units of its own it asks for none of the others'.
    """
    speed, load = plan.speeds[phase], plan.loads[phase]
    if speed is None:
        return 1.0, load
    return speed, {name: share * speed for name, share in load.items() if name != "compute"}


def _speed_on_share(phase: Phase) -> float | None:
    if phase.seconds_on_share is None:
        return None
    return phase.seconds / max(phase.seconds_on_share, phase.seconds, 1e-300)


def _load(phase: Phase, where: str, capacities: Mapping[str, float]) -> dict[str, float]:
    if not 0.0 <= phase.seconds < math.inf:
        raise ResourceError(f"{where}: length of {phase.seconds} s; allowed: finite, not negative")
    load: dict[str, float] = {}
    for name, demand in phase.demands.items():
        if name not in capacities:
            raise ResourceError(unknown("resource", name, capacities, where))
        most = capacities[name] * phase.seconds
        if not 0.0 <= demand <= most * (1.0 + 1e-9):
            raise ResourceError(
                f"{where}: demand of {demand} s on {name!r}; allowed: 0 to capacity x seconds = {most} s"
            )
        if demand > 0.0:
            load[name] = min(demand / phase.seconds, capacities[name])
    return load
