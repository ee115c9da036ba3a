"""Time of kernels that only stream activations: norms, rotary positions, gating, sampler.

A step's activations were written by the kernel before: as far as they fit the last-level cache they are found
there, and what leaves for HBM goes out while the next kernel runs. Weights and KV are never in the cache.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .form import MICRO, Chip, KernelTime, LaneLike, Value


@dataclass(frozen=True, slots=True)
class ElementwiseParams:
    """What streaming kernels reach.

    Attributes
    ----------
    t0 : fixed time of one kernel [s]
    eb : share of HBM bandwidth [-]
    l2f, l2b : share of the last-level cache that holds a kernel's bytes, its rate over ``eb`` of HBM's [-]; 0
        and 1 where not known
    """

    t0: float
    eb: float
    l2f: float = 0.0
    l2b: float = 1.0

    @classmethod
    def from_lane(cls, lane: LaneLike) -> ElementwiseParams:
        """Read a device's ``elementwise`` lane."""
        p = lane.params
        return cls(t0=p["t0_us"] * MICRO, eb=p["eb"], l2f=p.get("l2f", 0.0), l2b=p.get("l2b", 1.0))


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


def streams_time(
    chip: Chip,
    params: ElementwiseParams,
    streams: Iterable[tuple[float, float]],
    m: Value,
    kernels: Value,
) -> KernelTime:
    """Return the time of streaming kernels over ``m`` tokens, each in the cache as far as it fits [s].

    Of a kernel's bytes the share ``1 / (1 + (bytes / (l2f L2))^3)`` moves at ``l2b`` times the HBM rate.

    Approximation: that share is charged to ``hbm_activations`` too, though it loads no HBM (its demand does
    not hold it). Fitted to the layers' tables of RTX 4090 and RTX PRO 6000 (vLLM 0.19) the form errs by 16
    and 12 %, bytes over one bandwidth by 29 and 22 %.

    Parameters
    ----------
    streams : how often a kernel occurs, and what it moves per token [-, B]
    m : tokens
    kernels : kernels in all, those without a size included [-]
    """
    cache = params.l2f * chip.l2_bytes
    busy, in_memory = 0.0 * m, 0.0 * m
    for count, per_token in streams:
        moved = per_token * m
        seconds = count * moved / (params.eb * chip.bandwidth)
        resident = 1.0 / (1.0 + (moved / cache) ** 3) if cache > 0.0 else 0.0
        busy = busy + seconds * (1.0 - resident + resident / params.l2b)
        in_memory = in_memory + seconds * (1.0 - resident)
    return KernelTime(
        hbm_activations=busy,
        latency=kernels * params.t0 + 0.0 * m,
        hbm_demand=in_memory,
        compute_demand=busy,
    )
