"""Devices and engines as they might be: one draw of everything that is only known so well.

A draw is kept for a whole simulation: one parameter vector per lane, and one factor per lane and regime (what the
kernel is held up by) for what its form does not explain. A residual for every shape instead would average away
over the thousands of shapes that attention meets. Draws are keyed by (seed, draw, where the lane was fitted,
family, lane, name): who asks, in which order, for which model, changes nothing, so two scenarios with one seed
share what they have in common, and their ratio does not have it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import Any, Final

import numpy as np

from .device import DeviceProfile, load_device
from .engine import EngineProfile
from .errors import CatalogError
from .lanes import Lane, LatencyTable
from .spreads import (
    BRIDGED,
    PER_LOG_CHANGE,
    REGIMES,
    SAME_ARCH,
    SAME_CHIP,
    WHATIF_PER_LOG,
    Regime,
    Spread,
    cross_arch_spread,
    residual_spread,
    step_share,
)
from .steptypes import chip_of
from .timing.gemm import GemmParams, gemm_time

_NORMAL: Final = NormalDist()
_WIDEST_LOG: Final = 1.0
"""A parameter whose standard error is its own size or more is drawn within a factor of e."""

STATED_AS: Final[Mapping[Regime, tuple[str, ...]]] = {
    "memory": ("memory", "bandwidth", "switch", "long", "m<=64 large"),
    "compute": ("compute", "long", "64<m<=1024 large", "256<m<=1024 large", "m>1024 medium", "m>1024 large"),
    "latency": ("latency", "switch", "short", "small", "medium", "m<=64 small", "m<=64 medium"),
    "link": ("link", "large", "bulk"),
}
"""Names under which fits state the residual of a regime: attention by what rules (``switch``: between fixed times
and bandwidth), GEMM by rows and size of the weights, of which a serving step has the large."""

_SLOWER: Final[Mapping[str, tuple[Regime, float]]] = {
    **dict.fromkeys(
        (
            *("t0_us", "t1_us", "tq_us", "ts_us", "tb_us", "tcta_us", "tt_us", "tqz_us"),
            *("te_ns", "tr_ns", "tqr_ns", "td_us", "te_us"),
        ),
        ("latency", 1.0),
    ),
    **dict.fromkeys(("a0_us", "a1_us", "c0_us", "c1_us"), ("latency", 1.0)),
    "ec": ("compute", -1.0),
    "sx": ("compute", 1.0),
    "eb": ("memory", -1.0),
    "eqz": ("memory", -1.0),
    "x": ("memory", 1.0),
    "tk": ("compute", 1.0),
    **dict.fromkeys(("bl", "bb"), ("link", -1.0)),
}
"""Parameter -> what it is of, and the power of the factor on time that it takes: times grow, shares shrink. Every
form is of degree one in them, so equal factors scale a kernel's time as a whole."""


def normal(seed: int, draw: int, *key: str) -> float:
    """Return the standard normal number of a key, the same for the same arguments on any machine.

    Draws come in pairs of opposite sign (2 i and 2 i + 1), so that few of them are centred.

    >>> normal(0, 0, "gemm", "eb") == -normal(0, 1, "gemm", "eb")
    True
    """
    pair, sign = draw // 2, -1.0 if draw % 2 else 1.0
    return sign * _NORMAL.inv_cdf(_uniform(seed, str(pair), *key))


def even_normal(seed: int, draw: int, *key: str) -> float:
    """Return a number as ``normal`` does, but for draws that fill the distribution evenly however few they are.

    For what alone decides the width of an interval: pairs take the places of a van der Corput sequence, shifted by the
    key.

    >>> sizes = sorted(abs(even_normal(0, 2 * pair, "key")) for pair in range(4))
    >>> sizes[0] < 0.32 < sizes[1] < 0.68 < sizes[2] < 1.15 < sizes[3]
    True
    """
    pair, sign = draw // 2, -1.0 if draw % 2 else 1.0
    place = int(f"{pair:053b}"[::-1], 2) * 2.0**-53
    within = (place + _uniform(seed, *key)) % 1.0
    return sign * _NORMAL.inv_cdf(0.5 + 0.5 * min(within, 1.0 - 2.0**-40))


def _uniform(seed: int, *key: str) -> float:
    """Return the number in (0, 1) of a key."""
    text = "\x1f".join((str(seed), *key))
    word = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 11
    return (word + 0.5) * 2.0**-53


@dataclass(frozen=True, slots=True)
class DeviceDraw:
    """A device of which every lane is one draw; a ``StepDevice``, so a step model takes it as the device.

    Attributes
    ----------
    device : the device as it is best known
    seed, draw : which draw; draws of one seed are independent of each other but for their pairs
    engine : what serves on it; None where kernels are asked for by themselves. Of lanes with which whole steps were
        served and seen, these are drawn (``ServedStep``), not each lane by itself

    Examples
    --------
    >>> h100 = load_device("h100_sxm")
    >>> DeviceDraw(h100, seed=0, draw=3).lane("gemm") == DeviceDraw(h100, seed=0, draw=3).lane("gemm")
    True
    """

    device: DeviceProfile
    seed: int
    draw: int
    engine: EngineProfile | None = None
    _lanes: dict[tuple[str, str], Lane] = field(default_factory=dict[tuple[str, str], Lane], compare=False)

    @property
    def form(self) -> str:
        """Which timing forms the device has."""
        return self.device.form

    @property
    def peak_flops(self) -> Mapping[str, float]:
        """Dense matrix rate by dtype [FLOP/s]."""
        return self.device.peak_flops

    @property
    def hbm_bandwidth(self) -> float:
        """HBM bandwidth, one direction [B/s]."""
        return self.device.hbm_bandwidth

    @property
    def n_sm(self) -> int:
        """Compute units [-]."""
        return self.device.n_sm

    @property
    def l2_bytes(self) -> int:
        """Last-level cache [B]."""
        return self.device.l2_bytes

    @property
    def smem_bytes_per_sm(self) -> int | None:
        """On-chip memory of one compute unit [B]."""
        return self.device.smem_bytes_per_sm

    @property
    def boost_hz(self) -> float | None:
        """Boost clock; None where unknown [Hz]."""
        return self.device.boost_hz

    @property
    def arch(self) -> str:
        """Architecture."""
        return self.device.arch

    @property
    def link_bandwidth(self) -> float:
        """Bandwidth to the other devices of the node, one direction [B/s]."""
        return self.device.link_bandwidth

    def lane(self, family: str, lane: str = "vllm") -> Lane:
        """Return this draw of the parameters of one kernel family.

        Raises
        ------
        CatalogError : as ``DeviceProfile.lane``
        """
        key = (family, lane)
        if key not in self._lanes:
            found, engine = self.device.lane(family, lane), self.engine
            seen = engine is not None and _seen_in_service(engine, found)
            whole = whole_step(engine, self.seed, self.draw) if engine is not None and seen else None
            self._lanes[key] = draw_lane(self.device, found, self.seed, self.draw, whole)
        return self._lanes[key]


def draw_device(
    device: DeviceProfile, seed: int, draw: int, engine: EngineProfile | None = None
) -> DeviceDraw:
    """Return one draw of a device, and of what is not known of it behind an engine (see ``DeviceDraw``)."""
    return DeviceDraw(device, seed, draw, engine)


def draw_engine(
    engine: EngineProfile, seed: int, draw: int, device: DeviceProfile | None = None
) -> EngineProfile:
    """Return an engine whose step parameters are one draw; versions of one engine share their draws.

    On a device with whose lanes whole steps were served and seen, what these show stays, or is drawn with them.

    Parameters that are 0 (a time not identified yet) are drawn from a half normal. ``engine_gemm_efficiency`` makes up
    for what this draw has of the GEMM lane through which it was fitted: served runs have shown both together.
    """
    drawn: dict[str, Any] = {}
    at_home = device is not None and _seen_in_service(engine, device.lane("gemm", engine.lane))
    for name in type(engine.step).model_fields:
        known = getattr(engine.step, name)
        if at_home and name in SEEN_IN_STEPS:
            longer = whole_step(engine, seed, draw) if name in _TIMES else 1.0
            drawn[name] = known.model_copy(update={"value": known.value * longer})
            continue
        z = normal(seed, draw, "step", engine.engine, name)
        value = _moved(known.value, known.stderr, z)
        if name == "engine_gemm_efficiency" and engine.fitted_through and known.stderr > 0.0:
            value *= _longer(engine.fitted_through, engine.lane, seed, draw)
        drawn[name] = known.model_copy(update={"value": value})
    return engine.model_copy(update={"step": engine.step.model_copy(update=drawn)})


SEEN_FAMILIES: Final = ("gemm", "decode_attention", "prefill_attention", "elementwise")
"""Kernels of the steps that were served and seen: dense, in 16 bit, on one device."""
_TIMES: Final = ("host_exposed_s", "host_per_seq_s", "elementwise_t0_s")
SEEN_IN_STEPS: Final = (*_TIMES, "engine_gemm_efficiency", "mixed_decode_factor", "elementwise_eb")
"""Step parameters that the same steps have shown together with the lanes."""


def _seen_in_service(engine: EngineProfile, lane: Lane) -> bool:
    """Return whether whole steps with a lane were served by an engine and seen, wherever the lane is used now."""
    return (
        engine.served is not None
        and lane.family in SEEN_FAMILIES
        and lane.device == engine.fitted_through
        and lane.lane.split("_")[0] == engine.lane
    )


def whole_step(engine: EngineProfile, seed: int, draw: int) -> float:
    """Return what whole steps take in a draw over what they take as best known [-]."""
    spread = engine.served.spread if engine.served else 0.0
    return math.exp(spread * even_normal(seed, draw, "whole step", engine.engine))


_SEEN: Final = (2048.0, 8192.0, 8192.0)
"""A prompt's tokens by a large matrix: what the compute rate inside an engine shows at [tokens, elements]."""


def _longer(home: str, software: str, seed: int, draw: int) -> float:
    """Return the time that a draw of a device's GEMM lane takes over that of the lane, where compute rules [-]."""
    device = load_device(home)
    lane = device.lane("gemm", software)
    drawn, known = (
        float(gemm_time(chip_of(device), GemmParams.from_lane(each), *_SEEN).seconds)
        for each in (draw_lane(device, lane, seed, draw), lane)
    )
    return drawn / known


def draw_lane(device: DeviceProfile, lane: Lane, seed: int, draw: int, whole: float | None = None) -> Lane:
    """Return one draw of a lane that ``device.lane`` gave.

    Parameters
    ----------
    device, lane : where it is used, and the lane as best known
    seed, draw : which draw
    whole : what whole steps with it take in this draw, in the place of its own spread; None where none were seen [-]
    """
    params = dict(lane.params)
    level = fitted_level(device, lane)
    if whole is None and (level != "prior" or lane.correlation is not None):
        # A prior's standard errors are how far a fit may move each number by itself. Drawn all at once they
        # would make a prediction four times as unsure as the same numbers prove on the tables (see `PRIOR`).
        params = _vector(lane, seed, draw)
    factors: dict[Regime, float] = dict.fromkeys(REGIMES, 1.0 if whole is None else whole)
    for spread, key in _spreads(device, lane, level):
        if whole is not None and key[0] in ("all", "residual"):
            continue
        for regime in REGIMES:
            z = normal(seed, draw, *key, regime) if key[0] != "all" else normal(seed, draw, *key)
            factors[regime] *= math.exp(spread.of(regime) * z)
    return replace(lane, params=slowed(params, factors), table=_scaled(lane.table, factors["link"]))


def fitted_level(device: DeviceProfile, lane: Lane) -> str:
    """Return the level that a lane has on the device where it was fitted: it may have been borrowed since."""
    try:
        home = device if device.id == lane.device else load_device(lane.device)
        return home.fitted[lane.family][lane.lane].level
    except (CatalogError, KeyError):
        return lane.level


def parameter_spread(value: float, stderr: float) -> float:
    """Return the standard deviation of a parameter's logarithm [-]; 0 for a parameter that is 0."""
    return min(stderr / abs(value), _WIDEST_LOG) if value else 0.0


def residual_of(lane: Lane, regime: Regime, level: str) -> float:
    """Return a lane's residual spread in one regime [-]: its own, that of all its rows, or the table's."""
    stated = lane.residual
    if not stated:
        return residual_spread(lane.family, level).of(regime)
    own = [stated[name] for name in STATED_AS[regime] if name in stated]
    if own:
        return root_mean_square(own)
    return stated["all"] if "all" in stated else root_mean_square(list(stated.values()))


def root_mean_square(values: Sequence[float]) -> float:
    """Return the root of the mean of the squares.

    >>> root_mean_square([3.0, 4.0])
    3.5355339059327378
    """
    return math.sqrt(sum(value * value for value in values) / len(values))


def slowed(params: Mapping[str, float], factors: Mapping[Regime, float]) -> dict[str, float]:
    """Return parameters whose kernels take so much longer for what each regime stands for [-].

    >>> slowed({"t0_us": 2.0, "eb": 0.8}, {"memory": 2.0})
    {'t0_us': 2.0, 'eb': 0.4}
    """
    moved = dict(params)
    for name, (regime, power) in _SLOWER.items():
        if name in moved:
            moved[name] *= factors.get(regime, 1.0) ** power
    return moved


def added_spread(device: DeviceProfile, lane: Lane) -> Spread:
    """Return what a lane's level adds to the spread of the device where it was fitted (not its residual)."""
    level = fitted_level(device, lane)
    added = [spread for spread, key in _spreads(device, lane, level) if key[0] not in ("all", "residual")]
    return Spread(*(math.hypot(*(spread.of(regime) for spread in added)) for regime in REGIMES))


def _vector(lane: Lane, seed: int, draw: int) -> dict[str, float]:
    """Return one parameter vector: log-normal about the estimates, correlated as the fit says."""
    names = list(lane.params)
    z = np.array([normal(seed, draw, "lane", lane.device, lane.family, lane.lane, name) for name in names])
    if lane.correlation is not None and len(lane.correlation) == len(names):
        z = correlated(np.array(lane.correlation), z)
    return {
        name: _moved(lane.params[name], lane.stderr.get(name, 0.0), float(each))
        for name, each in zip(names, z, strict=True)
    }


def correlated(correlation: np.ndarray[Any, Any], z: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return independent standard normals mixed so that they correlate; a matrix that is none is mended.

    Parameters
    ----------
    correlation : shape (n, n); eigenvalues below 0 (rounded figures) count as 0
    z : shape (n,)
    """
    values, vectors = np.linalg.eigh(0.5 * (correlation + correlation.T))
    mixed = vectors @ (np.sqrt(np.maximum(values, 0.0)) * (vectors.T @ z))
    variance = np.maximum((vectors**2) @ np.maximum(values, 0.0), 1e-12)
    return mixed / np.sqrt(variance)


def _moved(value: float, stderr: float, z: float) -> float:
    if stderr <= 0.0:
        return value
    if value == 0.0:
        return abs(stderr * z)
    return value * math.exp(parameter_spread(value, stderr) * z)


def _spreads(device: DeviceProfile, lane: Lane, level: str) -> Iterator[tuple[Spread, tuple[str, ...]]]:
    """Yield what a lane's times may be off by, each with the key of its draw; first part ``all``: one draw."""
    share = step_share(lane.family)
    residual = Spread(*(residual_of(lane, regime, level) * share for regime in REGIMES))
    by_regime = any(name in lane.residual for names in STATED_AS.values() for name in names)
    yield residual, ("residual" if by_regime else "all", lane.device, lane.family, lane.lane)
    if level == "bridged":
        yield BRIDGED, ("bridged", lane.device, lane.family, lane.lane)
    if lane.device != device.id:
        yield _transfer(device, lane)
    if device.whatif:
        yield _changed(_catalogued(device.id), device, WHATIF_PER_LOG), ("whatif", device.id)


def _transfer(device: DeviceProfile, lane: Lane) -> tuple[Spread, tuple[str, ...]]:
    """Return what a lane gains in spread by being borrowed, and the key of the draw."""
    origin, base = _catalogued(lane.device), _catalogued(device.id) or device
    key = ("transfer", lane.device, device.id)
    if lane.level == "transferred_cross_arch" or origin is None:
        return cross_arch_spread(lane.family), (*key, lane.family, lane.lane)
    if origin.n_sm == base.n_sm:
        changed = _changed(origin, base, Spread.flat(PER_LOG_CHANGE))
        return Spread(*(math.hypot(changed.of(r), SAME_CHIP.of(r)) for r in REGIMES)), key
    return SAME_ARCH, key


def _changed(old: DeviceProfile | None, new: DeviceProfile, per_log: Spread) -> Spread:
    """Return the spread that changed datasheet figures bring; without the old ones, that of a doubling."""
    if old is None:
        return Spread(*(per_log.of(regime) * math.log(2.0) for regime in REGIMES))
    units = _log_change(old.n_sm, new.n_sm)
    rates = [_log_change(rate, new.peak_flops.get(dtype, rate)) for dtype, rate in old.peak_flops.items()]
    clock = _log_change(old.boost_hz or 0.0, new.boost_hz or 0.0)
    return Spread(
        memory=per_log.memory * _log_change(old.hbm_bandwidth, new.hbm_bandwidth),
        compute=per_log.compute * max(units, clock, *rates),
        latency=per_log.latency * units,
        link=per_log.link * _log_change(old.link_bandwidth, new.link_bandwidth),
    )


def _log_change(old: float, new: float) -> float:
    return abs(math.log(new / old)) if old > 0.0 and new > 0.0 else 0.0


def _catalogued(name: str) -> DeviceProfile | None:
    try:
        return load_device(name)
    except CatalogError:
        return None


def _scaled(table: LatencyTable | None, factor: float) -> LatencyTable | None:
    if table is None or factor == 1.0:
        return table
    rows = {
        group: tuple(None if t is None else t * factor for t in row)
        for group, row in table.latency_us.items()
    }
    return table.model_copy(update={"latency_us": rows})
