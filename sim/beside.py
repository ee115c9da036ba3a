"""Engines that share one device: two models, or two streams of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from .device.resources import SharedDevice

if TYPE_CHECKING:
    from .clock import Clock

MONITORED: Mapping[str, str] = {
    "gpu_util": "kernel_busy_s",
    "sm_active": "sm_active_s",
    "tensor_active": "tensor_active_s",
    "dram_active": "dram_active_s",
}
"""What tools show of a device, and the sum over steps that it is made of."""


def shared_device(env: Clock, engines: int) -> SharedDevice:
    """Return a device that so many engines use; each has a host process of its own."""
    whole = dict.fromkeys(("hbm", "compute", "link", "h2d", "d2h"), 1.0)
    return SharedDevice(env, whole | {"host": float(engines)})


def monitored(
    device: SharedDevice, works: Sequence[Mapping[str, float]], start_ns: int, end_ns: int
) -> dict[str, float]:
    """Return what tools would show of the device while all engines on it ran, by name of ``utilization``.

    Parameters
    ----------
    works : of each engine, the sums of its steps
    start_ns, end_ns : first arrival and last token of all [ns]
    """
    span_s = (end_ns - start_ns) / 1e9
    if span_s <= 0.0:
        return {}
    sums = {name: sum(work[column] for work in works) for name, column in MONITORED.items()}
    sums["gpu_util"] -= device.overlap_ns / 1e9
    return {name: total / span_s for name, total in sums.items()}
