"""What a step model asks of a device and an engine, and what it answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from .timing.form import KERNEL_TIME_FIELDS, Chip, KernelTime, LaneLike, Value


class StepDevice(Protocol):
    """The part of a ``DeviceProfile`` that times kernels."""

    @property
    def form(self) -> str: ...
    @property
    def peak_flops(self) -> Mapping[str, float]: ...
    @property
    def hbm_bandwidth(self) -> float: ...
    @property
    def n_sm(self) -> int: ...
    @property
    def l2_bytes(self) -> int: ...
    @property
    def smem_bytes_per_sm(self) -> int | None: ...
    @property
    def link_bandwidth(self) -> float: ...
    @property
    def boost_hz(self) -> float | None: ...
    @property
    def arch(self) -> str: ...
    def lane(self, family: str, lane: str = ...) -> LaneLike: ...


class StepEngine(Protocol):
    """The part of an ``EngineProfile`` that times steps."""

    @property
    def lane(self) -> str: ...
    @property
    def capture_sizes(self) -> Sequence[int]: ...
    @property
    def host_exposed_s(self) -> float: ...
    @property
    def host_per_seq_s(self) -> float: ...
    @property
    def engine_gemm_efficiency(self) -> float: ...
    @property
    def engine_gemm_efficiency_low(self) -> float: ...
    @property
    def mixed_decode_factor(self) -> float: ...
    @property
    def mixed_decode_threshold_tokens(self) -> int: ...
    @property
    def quantise_fused(self) -> float: ...
    @property
    def quantise_fused_4bit(self) -> float: ...
    @property
    def elementwise_t0_s(self) -> float: ...
    @property
    def elementwise_eb(self) -> float: ...
    @property
    def sampler_greedy_t0_s(self) -> float: ...
    @property
    def sampler_greedy_bytes_per_entry(self) -> float: ...
    @property
    def sampler_topk_t0_s(self) -> float: ...
    @property
    def sampler_topk_bytes_per_entry(self) -> float: ...
    @property
    def sampler_topk_serial_s_per_entry(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase of a step, for the shared resources.

    Attributes
    ----------
    name : ``gemm``, ``attention``, ``moe``, ``communication``, ``head``, ``host``, ...
    seconds : its time alone [s]
    demands : resource -> resource-seconds (``hbm``, ``compute``, ``link``, ``host``), none above ``seconds``
    seconds_on_share : its time without contention while it is held to a share of the compute units, others having the
        rest; None: it has no units of its own [s]
    """

    name: str
    seconds: float
    demands: Mapping[str, float]
    seconds_on_share: float | None = None


def phases_of(name: str, times: KernelTime, count: int) -> list[Phase]:
    """Return ``count`` phases of one name, one for each entry of the arrays in ``times``."""
    columns = [
        np.broadcast_to(np.asarray(getattr(times, field), dtype=np.float64), (count,)).tolist()
        for field in KERNEL_TIME_FIELDS
    ]
    return [as_phase(name, KernelTime(*row)) for row in zip(*columns, strict=True)]


def as_phase(name: str, time: KernelTime) -> Phase:
    """Return kernels as one phase; rounding never makes a demand exceed the phase's seconds."""
    seconds = _total(time.seconds)
    demands = {
        resource: min(_total(demand), seconds)
        for resource, demand in (
            ("hbm", time.hbm_demand),
            ("compute", time.compute_demand),
            ("link", time.link_demand),
        )
    }
    return Phase(name, seconds, {resource: demand for resource, demand in demands.items() if demand > 0.0})


def demanded(name: str, seconds: float, hbm: float, compute: float) -> Phase:
    """Return kernels as one phase, as ``as_phase`` does; all [s]."""
    demands: dict[str, float] = {}
    if hbm > 0.0:
        demands["hbm"] = min(hbm, seconds)
    if compute > 0.0:
        demands["compute"] = min(compute, seconds)
    return Phase(name, seconds, demands)


def peaks(phases: Iterable[Phase], beside: Mapping[str, float] | None = None) -> dict[str, float]:
    """Return the largest share of each resource that any phase holds at full speed, or ``beside`` already does [-]."""
    found = dict(beside or {})
    for phase in phases:
        if phase.seconds <= 0.0:
            continue
        for name, demand in phase.demands.items():
            share = demand / phase.seconds
            if share > found.get(name, 0.0):
                found[name] = share
    return found


def _total(value: Value) -> float:
    """Return a number, or the sum of an array; most have one entry, and ``np.sum`` costs ten times as much."""
    if not isinstance(value, np.ndarray):
        return float(value)
    return float(value.item() if value.size == 1 else np.sum(value))


ONCHIP_BYTES_PER_CLOCK: Final = 128.0
"""Bytes that on-chip memory of a compute unit delivers a clock: 32 banks of 4 (CUDA programming guide; CDNA ISA)."""
USUAL_CLOCK: Final = 1.9e9
"""Clock of a device whose datasheet names none: near those of H100, H200 and B200 [Hz]."""
FED_WHILE_COMPUTING: Final = ("Hopper", "Blackwell", "Blackwell Ultra")
"""Architectures whose matrix units read operands from on-chip memory by themselves (wgmma, tcgen05); on the others
warps load them into registers first (mma.sync, mfma)."""


def chip_of(device: StepDevice) -> Chip:
    """Return the datasheet symbols of a device."""
    return Chip(
        peak_flops=device.peak_flops,
        bandwidth=device.hbm_bandwidth,
        units=float(device.n_sm),
        l2_bytes=float(device.l2_bytes),
        onchip_bytes=float(device.smem_bytes_per_sm or 0),
        link_bandwidth=device.link_bandwidth,
        unit_share=getattr(device, "unit_share", 1.0),
        roofline3=device.form == "roofline3",
        feed=ONCHIP_BYTES_PER_CLOCK * (device.boost_hz or USUAL_CLOCK) * device.n_sm,
        feed_waits=device.arch not in FED_WHILE_COMPUTING,
    )
