"""Find what is implausible in a device file: sparse rates, summed directions, wrong units, missing sources.

Pure: ``lint`` returns one line per finding and changes nothing. The tests run it over every bundled device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from .datasheet import sourced_fields
from .device import DeviceProfile
from .lanes import FittedLane

#: dense bf16 FLOP of one SM (CU) in one clock, by architecture
_FLOP_PER_CLOCK = {
    "Ampere": 2048,
    "Ada": 1024,
    "Hopper": 4096,
    "Blackwell": 8192,
    "Blackwell Ultra": 8192,
    "Blackwell RTX": 1024,
    "CDNA3": 2048,
    "CDNA4": 4096,
}
_AMPERE_GDDR = 1024
#: dense rate of a dtype over bf16; twice that where bf16 runs at half rate (GeForce, fp32 accumulation)
_RATIO = {"fp16": 1.0, "fp8": 2.0, "fp4": 4.0, "int8": 2.0, "tf32": 0.5, "fp32": 0.5}
_ULTRA_FP4 = 6.3
#: one direction, summed over the links of a device [B/s]
_LINK = {
    "NVLink3": 300e9, "NVLink4": 450e9, "NVLink5": 900e9, "NVLink bridge": 300e9, "PCIe": 64e9,
    "Infinity Fabric": 540e9, "ICI": 600e9,
}  # fmt: skip
_GIB = 2**30
_RANGES: dict[str, tuple[float, float]] = {
    "hbm_capacity": (8e9, 1e12),
    "usable_memory": (7 * _GIB, 1e12),
    "hbm_bandwidth": (100e9, 30e12),
    "n_sm": (1, 400),
    "l2": (1 * 2**20, 512 * 2**20),
    "smem_per_sm": (16 * 2**10, 2**20),
    "boost": (0.5e9, 4e9),
    "tdp": (50, 3000),
    "link.bandwidth": (10e9, 2e12),
    "pcie": (10e9, 130e9),
    "peak_flops.bf16": (20e12, 10e15),
}
#: shares of a peak or a bandwidth may exceed 1 a little, because smooth maxima add time
_SHARES = ("ec", "eb", "eqz", "bl", "bb")
_LARGEST_SHARE = 1.2


def lint(profile: DeviceProfile) -> list[str]:
    """Return what is implausible about a device, one line each; nothing for a good file.

    Examples
    --------
    >>> from membound.hwmodels.device import load_device
    >>> lint(load_device("h100_sxm"))
    []
    """
    rules: tuple[Callable[[DeviceProfile], Iterator[str]], ...] = (
        _ranges,
        _capacity,
        _dense,
        _one_direction,
        _ridge,
        _sources,
        _lanes,
    )
    return [f"{profile.id}: {finding}" for rule in rules for finding in rule(profile)]


def _ranges(profile: DeviceProfile) -> Iterator[str]:
    for name, sourced in sourced_fields(profile.datasheet).items():
        low, high = _RANGES.get(name, (-math.inf, math.inf))
        if isinstance(sourced.value, int | float) and not low <= sourced.value <= high:
            yield f"{name} {sourced.value:g} is outside {low:g} to {high:g} (SI units: bytes, B/s, Hz, W)"


def _capacity(profile: DeviceProfile) -> Iterator[str]:
    """The driver's total lies just below the capacity as sold, read as GiB."""
    share = profile.usable_bytes / (profile.hbm_bytes / 1e9 * _GIB)
    if profile.hbm_bytes % _GIB == 0:
        share = profile.usable_bytes / profile.hbm_bytes
    if not 0.9 <= share <= 1.0:
        yield f"usable_memory is {share:.2f} of hbm_capacity as GiB; expected 0.90 to 1.00"


def _dense(profile: DeviceProfile) -> Iterator[str]:
    """Sparse rates are twice the dense ones, so they break a per-clock or a per-dtype ratio."""
    peaks = profile.peak_flops
    if "bf16" not in peaks:
        yield "peak_flops.bf16 is missing"
        return
    limit, reached = _per_clock(profile)
    if reached > 1.02 * limit:
        yield f"peak_flops.bf16 is {reached:.0f} FLOP per unit and clock, above {limit} (a sparse rate?)"
    slack = 2.0 if reached < 0.6 * limit else 1.0
    for dtype, rate in peaks.items():
        ratio = rate / peaks["bf16"]
        most = slack * _RATIO.get(dtype, math.inf)
        if dtype == "fp4" and profile.arch == "Blackwell Ultra":
            most = _ULTRA_FP4
        if ratio > 1.02 * most:
            yield f"peak_flops.{dtype} is {ratio:.2f} x bf16, above {most:g} (a sparse rate?)"


def _per_clock(profile: DeviceProfile) -> tuple[float, float]:
    """Return the dense limit and the file's claim, in bf16 FLOP per unit and clock; no limit if unknown."""
    limit = _FLOP_PER_CLOCK.get(profile.arch)
    if limit is None or not profile.boost_hz:
        return math.inf, math.nan
    if profile.arch == "Ampere" and "GDDR" in profile.datasheet.hbm_type.value:
        limit = _AMPERE_GDDR
    return limit, profile.peak_flops["bf16"] / (profile.n_sm * profile.boost_hz)


def _one_direction(profile: DeviceProfile) -> Iterator[str]:
    limit = _LINK.get(profile.link_type)
    if limit is None:
        yield f"link type {profile.link_type!r} is not one of {', '.join(_LINK)}"
    elif profile.link_bandwidth > limit:
        rate = profile.link_bandwidth / 1e9
        most = f"{limit / 1e9:g} GB/s for {profile.link_type}"
        yield f"link bandwidth {rate:g} GB/s is above {most} (both directions?)"


def _ridge(profile: DeviceProfile) -> Iterator[str]:
    ridge = profile.peak_flops.get("bf16", math.nan) / profile.hbm_bandwidth
    if not 50 <= ridge <= 1000:
        yield f"ridge point {ridge:.0f} FLOP/B of bf16 is outside 50 to 1000"


def _sources(profile: DeviceProfile) -> Iterator[str]:
    for name, sourced in sourced_fields(profile.datasheet).items():
        if len(sourced.source.strip()) < 4:
            yield f"{name} has no source"
        elif sourced.checked and "recalled" in sourced.source:
            yield f"{name} is marked checked, but its source is recalled"


def _lanes(profile: DeviceProfile) -> Iterator[str]:
    if not profile.fitted and profile.transfer_from is None:
        yield "has neither fitted lanes nor transfer_from"
    for family, lanes in profile.fitted.items():
        for name, lane in lanes.items():
            for finding in _parameters(lane):
                yield f"fitted.{family}.{name}.{finding}"


def _parameters(lane: FittedLane) -> Iterator[str]:
    if len(lane.source.strip()) < 4:
        yield "source is missing"
    for symbol, parameter in lane.parameters.items():
        if parameter.value < 0:
            yield f"{symbol} {parameter.value:g} is negative"
        if symbol in _SHARES and not 0 < parameter.value <= _LARGEST_SHARE:
            yield f"{symbol} {parameter.value:g} is no share between 0 and {_LARGEST_SHARE:g}"
