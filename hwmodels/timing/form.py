"""What all kernel-time forms share: datasheet symbols, the smooth maximum, time split by cause."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Value = float | Array

MICRO: Final = 1e-6

CAUSES: Final = ("hbm_weights", "hbm_kv", "hbm_activations", "compute", "communication", "latency")
"""The causes a kernel's own time can have; launch gaps, host and idle belong to the engine."""


class LaneLike(Protocol):
    """The part of a device's fitted lane that a form reads."""

    @property
    def params(self) -> Mapping[str, float]:
        """Fitted parameters by their symbol [- or us, as the symbol says]."""
        ...


@dataclass(frozen=True, slots=True)
class Chip:
    """Datasheet symbols of one device; what-ifs change these and nothing that was fitted.

    Attributes
    ----------
    peak_flops : C, dense peak by compute dtype (``bf16``, ``fp8``, ...) [FLOP/s]
    bandwidth : B, HBM, one direction, read [B/s]
    units : S, compute units (SM, CU); a core count where ``form`` is ``roofline3`` [-]
    l2_bytes : last-level cache [B]
    onchip_bytes : memory per compute unit that a flash tile must fit [B]; 0 where unknown
    link_bandwidth : between the devices of a group, one direction, per device [B/s]; 0 where there is none
    feed : at which the on-chip memories of all units together feed their matrix units [B/s]; 0 where unknown
    feed_waits : warps load operands into registers, each twice, and compute then; else the matrix unit reads on-chip
        memory itself while it computes
    unit_share : of the device's compute units that ``units`` are, where others use the rest [-]
    roofline3 : True for devices without comparable units (TPU): ``t0 + max(FLOP/(ec C), bytes/(eb B))``
    """

    peak_flops: Mapping[str, float]
    bandwidth: float
    units: float
    l2_bytes: float = 0.0
    onchip_bytes: float = 0.0
    link_bandwidth: float = 0.0
    unit_share: float = 1.0
    roofline3: bool = False
    feed: float = 0.0
    feed_waits: bool = True

    def peak(self, dtype: str) -> float:
        """Return the dense peak of ``dtype`` [FLOP/s], or of the fastest dtype that can stand in for it.

        A dtype without matrix units of its own is computed in a wider one (fp8 on an A100 in bf16, fp4 on an
        H100 in fp8): the values are converted, the rate is the wider one's.
        """
        for candidate in _STAND_INS.get(dtype, (dtype,)):
            if candidate in self.peak_flops:
                return self.peak_flops[candidate]
        return max(self.peak_flops.values())


_STAND_INS: Final[dict[str, tuple[str, ...]]] = {
    "bf16": ("bf16", "fp16"),
    "fp16": ("fp16", "bf16"),
    "fp8": ("fp8", "bf16", "fp16"),
    "int8": ("int8", "fp8", "bf16", "fp16"),
    "fp4": ("fp4", "fp8", "bf16", "fp16"),
    "fp32": ("tf32", "fp32"),
    "tf32": ("tf32", "fp32"),
}


@dataclass(frozen=True, slots=True)
class KernelTime:
    """Seconds of one kernel (or of many at once, as arrays), split by what they are spent on; all [s].

    A smooth maximum has no single winner: its value is divided in the proportion of the q-powers it adds up.
    ``latency`` holds what neither bandwidth nor peak would shorten: launch-to-launch fixed time, pipeline
    fill, fixed time per thread block, serial latency of a key block, extra pass of a split.

    The ``*_demand`` fields are no part of that sum: they say what the kernel takes of each shared resource,
    in resource-seconds [s]: bytes over the bandwidth it can reach, compute units held x time over all units,
    link bytes over the link rate. None exceeds the kernel's seconds.
    """

    hbm_weights: Value = 0.0
    hbm_kv: Value = 0.0
    hbm_activations: Value = 0.0
    compute: Value = 0.0
    communication: Value = 0.0
    latency: Value = 0.0
    hbm_demand: Value = 0.0
    compute_demand: Value = 0.0
    link_demand: Value = 0.0

    @property
    def seconds(self) -> Value:
        """Sum over the causes [s]."""
        return (
            self.hbm_weights
            + self.hbm_kv
            + self.hbm_activations
            + self.compute
            + self.communication
            + self.latency
        )

    def __add__(self, other: KernelTime) -> KernelTime:
        """Return the time of one kernel after the other."""
        return KernelTime(*(getattr(self, name) + getattr(other, name) for name in KERNEL_TIME_FIELDS))

    def times(self, factor: Value) -> KernelTime:
        """Return the time of ``factor`` such kernels."""
        return self.map(lambda value: value * factor)

    def map(self, function: Callable[[Value], Value]) -> KernelTime:
        """Return the time with ``function`` applied to every field."""
        return KernelTime(*(function(getattr(self, name)) for name in KERNEL_TIME_FIELDS))


KERNEL_TIME_FIELDS: Final = tuple(KernelTime.__dataclass_fields__)


class Demands(NamedTuple):
    """Seconds of one kernel and what it takes of the shared resources, as in ``KernelTime``, in plain numbers [s]."""

    seconds: float = 0.0
    hbm: float = 0.0
    compute: float = 0.0


NO_DEMANDS: Final = Demands()


def either(first: NDArray[np.bool_], one: KernelTime, other: KernelTime) -> KernelTime:
    """Return one time where ``first`` holds, the other elsewhere."""

    def chosen(name: str) -> Array:
        return np.where(first, np.asarray(getattr(one, name)), np.asarray(getattr(other, name)))

    return KernelTime(*(chosen(name) for name in KERNEL_TIME_FIELDS))


def pn(a: Value, b: Value, q: float) -> Value:
    """Return the smooth maximum ``(a^q + b^q)^(1/q)``: the larger one, plus what imperfect overlap adds.

    >>> pn(3.0, 4.0, 2.0)
    5.0
    """
    return (a**q + b**q) ** (1.0 / q)


def power_shares(q: float, *terms: Value) -> tuple[Value, ...]:
    """Return the share of each term in their smooth maximum: its q-power over the sum of them [-].

    The terms are scaled by the largest first, so that seconds of 1e-9 to the power of 8 do not underflow.
    """
    top = terms[0]
    for term in terms[1:]:
        top = np.maximum(top, term)
    scale = 1.0 / np.maximum(top, 1e-300)
    powers = [(term * scale) ** q for term in terms]
    total = sum(powers)
    return tuple(power / total for power in powers)


def soft_waves(w: Value, wq: Value) -> Value:
    """Return the waves that ``w`` = blocks over slots take: whole ones with weight ``wq``, at least one."""
    return (1.0 - wq) * np.maximum(w, 1.0) + wq * np.ceil(w)


def larger(a: Value, b: Value) -> Value:
    """Return the larger of two numbers, or entry by entry of arrays.

    Plain numbers take Python's own way: the step model asks for one batch at a time.
    """
    return np.maximum(a, b) if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) else max(a, b)


def smaller(a: Value, b: Value) -> Value:
    """Return the smaller of two numbers, or entry by entry of arrays."""
    return np.minimum(a, b) if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) else min(a, b)


def whole(a: Value) -> Value:
    """Return the next whole number at or above a number, or of every entry of an array."""
    return np.asarray(np.ceil(a), dtype=np.float64) if isinstance(a, np.ndarray) else math.ceil(a)


def floor(a: Value) -> Value:
    """Return the next whole number at or below a number, or of every entry of an array."""
    return np.asarray(np.floor(a), dtype=np.float64) if isinstance(a, np.ndarray) else math.floor(a)
