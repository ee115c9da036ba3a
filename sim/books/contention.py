"""What steps took longer because others used the device too: charged to the resource that was short."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .attribution import CHARGED

if TYPE_CHECKING:
    from .steprow import StepRow

Int64Array = npt.NDArray[np.int64]

CAUSES_OF: Mapping[str, tuple[str, ...]] = {
    "hbm": ("hbm_weights", "hbm_kv", "hbm_activations"),
    "compute": ("compute",),
    "link": ("communication",),
    "host": ("host",),
    "h2d": ("transfer",),
    "d2h": ("transfer",),
}
"""Resource -> the causes that waiting for it is charged to, in the proportion that a step has of them already."""


def waited_ns(rows: Sequence[StepRow], steps: Int64Array, durations_ns: Int64Array) -> dict[str, Int64Array]:
    """Return what each step waited for each resource, in whole ns and no more than it took; nothing if none did.

    A row that waited is a single step: a device that others use is not jumped over.
    """
    if not any(map(attrgetter("waited"), rows)):
        return {}
    slowed = [number for number, row in enumerate(rows) if row.waited]
    first = (np.cumsum(steps) - steps)[slowed]
    left = durations_ns[first]
    found: dict[str, Int64Array] = {}
    for resource in CAUSES_OF:
        asked = np.array([rows[number].waited.get(resource, 0.0) for number in slowed])
        if not asked.any():
            continue
        taken = np.minimum(np.rint(asked).astype(np.int64), left)
        left = left - taken
        found[resource] = np.zeros(len(durations_ns), dtype=np.int64)
        found[resource][first] = taken
    return found


def charge(spent: Sequence[Int64Array], waited: Mapping[str, Int64Array]) -> list[Int64Array]:
    """Return the time of steps by cause with what they waited for, in the order of ``CHARGED`` [ns]."""
    if not waited:
        return list(spent)
    charged = [nanoseconds.copy() for nanoseconds in spent]
    for resource, more in waited.items():
        names = CAUSES_OF[resource]
        own = [spent[CHARGED.index(name)].astype(np.float64) for name in names]
        total, left = sum(own[1:], own[0]), more
        for name, part in zip(names[1:], own[1:], strict=True):
            share = np.divide(part, total, out=np.zeros_like(part), where=total > 0)
            given = np.minimum(np.floor(more * share).astype(np.int64), left)
            charged[CHARGED.index(name)] += given
            left = left - given
        charged[CHARGED.index(names[0])] += left
    return charged


def figures(waited: Mapping[str, int], busy_ns: int) -> dict[str, Any]:
    """Return how much slower the steps were than alone, and the share of busy time that they waited, by resource."""
    total = sum(waited.values())
    return {
        "slowdown": busy_ns / (busy_ns - total) if busy_ns > total else None,
        "waited_share": {
            name: waited.get(name, 0) / busy_ns if busy_ns else None for name in ("hbm", "compute", "link")
        },
    }
