"""Time of kernels that only stream activations: norms, rotary positions, gating, sampler."""

from __future__ import annotations

from dataclasses import dataclass

from .form import MICRO, Chip, KernelTime, LaneLike, Value


@dataclass(frozen=True, slots=True)
class ElementwiseParams:
    """Fixed time of one kernel [s] and the share of HBM bandwidth it reaches [-]."""

    t0: float
    eb: float

    @classmethod
    def from_lane(cls, lane: LaneLike) -> ElementwiseParams:
        """Read a device's ``elementwise`` lane."""
        return cls(t0=lane.params["t0_us"] * MICRO, eb=lane.params["eb"])


def elementwise_time(chip: Chip, params: ElementwiseParams, moved: Value, kernels: Value = 1.0) -> KernelTime:
    """Return the time of ``kernels`` launches that move ``moved`` bytes in all: ``t0`` each, plus bytes [s].

    >>> h100 = Chip({"bf16": 989e12}, 3.35e12, 132)
    >>> elementwise_time(h100, ElementwiseParams(2e-6, 0.75), 3.35e6 * 0.75).seconds
    3e-06
    """
    busy = moved / (params.eb * chip.bandwidth)
    return KernelTime(
        hbm_activations=busy, latency=kernels * params.t0 + 0.0 * moved, hbm_demand=busy, compute_demand=busy
    )
