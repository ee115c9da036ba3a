"""What-if devices: one datasheet value replaced or multiplied, everything fitted kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast, get_args

from .datasheet import Datasheet, Dtype, Sourced, sourced_fields
from .errors import CatalogError, unknown
from .units import (
    is_factor,
    parse_bytes,
    parse_count,
    parse_factor,
    parse_flops,
    parse_hertz,
    parse_rate_bytes,
    parse_watts,
)

_PARSERS: dict[str, Callable[[object], float]] = {
    "hbm_capacity": parse_bytes,
    "usable_memory": parse_bytes,
    "hbm_bandwidth": parse_rate_bytes,
    "peak_flops": parse_flops,
    "n_sm": parse_count,
    "l2": parse_bytes,
    "smem_per_sm": parse_bytes,
    "boost": parse_hertz,
    "tdp": parse_watts,
    "link.bandwidth": parse_rate_bytes,
    "pcie": parse_rate_bytes,
    "c2c": parse_rate_bytes,
}
_TEXTS = ("hbm_type", "link.type")
_OPTIONAL = (
    "l2", "smem_per_sm", "boost", "tdp", "pcie", *(f"peak_flops.{dtype}" for dtype in get_args(Dtype)),
)  # fmt: skip
"""Values that a device may lack, and that a what-if may give it."""
#: below these [B/s, FLOP/s] steps would last for years
_LEAST = {"hbm_bandwidth": 1e6, "peak_flops": 1e9, "link.bandwidth": 1e3}
#: above this [B, B/s, FLOP/s, Hz, W, -] times fall below what a float tells from zero
_MOST = 1e24
#: attribute names of DeviceProfile, which people write instead of the datasheet's
_SPELLINGS = {
    "hbm_bytes": "hbm_capacity",
    "usable_bytes": "usable_memory",
    "l2_bytes": "l2",
    "smem_bytes_per_sm": "smem_per_sm",
    "boost_hz": "boost",
    "tdp_w": "tdp",
    "link_bandwidth": "link.bandwidth",
    "pcie_bandwidth": "pcie",
    "c2c_bandwidth": "c2c",
}


def changed_datasheet(base: Datasheet, changes: Mapping[str, object], device: str) -> Datasheet:
    """Return ``base`` with values changed: ``x1.5`` multiplies, anything else replaces.

    ``hbm_capacity`` is the vendor's figure: what the driver reports (``usable_memory``) scales with it unless
    it is given too. ``peak_flops: x2`` multiplies every dtype, ``peak_flops.bf16`` one of them. What the base lacks
    (a cache that is not known, a dtype without matrix units) can be given a value.

    Raises
    ------
    CatalogError : a key that is no datasheet value, a value of zero, or a factor of what the base lacks
    UnitError : a value that is no quantity of its kind
    """
    flat = _flatten(base, changes, device)
    if "hbm_capacity" in flat and "usable_memory" not in flat:
        old = base.hbm_capacity.value
        flat["usable_memory"] = f"x{_changed('hbm_capacity', old, flat['hbm_capacity']) / old!r}"
    changed = base
    for name, value in flat.items():
        changed = _with(changed, name, value)
    return changed


def _flatten(base: Datasheet, changes: Mapping[str, object], device: str) -> dict[str, object]:
    """Spell every change as one datasheet leaf."""
    leaves = list(sourced_fields(base))
    flat: dict[str, object] = {}
    for name, value in changes.items():
        leaf = _SPELLINGS.get(name, name)
        if leaf in ("peak_flops", "link") and isinstance(value, Mapping):
            nested = cast("Mapping[str, object]", value)
            flat |= _flatten(base, {f"{leaf}.{inner}": change for inner, change in nested.items()}, device)
        elif leaf == "peak_flops":
            if not is_factor(value):
                raise CatalogError(
                    f"peak_flops: {value!r} is no factor such as x1.5; name a dtype: peak_flops.bf16"
                )
            flat |= {dtype: value for dtype in leaves if dtype.startswith("peak_flops.")}
        elif leaf not in (*leaves, *_OPTIONAL, *_TEXTS):
            allowed = dict.fromkeys(("base", "peak_flops", *leaves, *_OPTIONAL, *_TEXTS))
            raise CatalogError(unknown("device override", name, allowed, device, shown=30))
        else:
            flat[leaf] = value
    return flat


def _changed(name: str, old: float | None, value: object) -> float:
    parser = _PARSERS[name if name in _PARSERS else name.partition(".")[0]]
    if old is None and is_factor(value):
        raise CatalogError(f"device override {name}: {value!r} of what the base lacks; give it a value")
    new = (old or 0.0) * parse_factor(value) if is_factor(value) else parser(value)
    new = float(new) if isinstance(old, float) else round(new) if isinstance(old, int) else new
    if new <= 0:
        raise CatalogError(f"device override {name}: {value!r} must be above 0")
    least = _LEAST.get(name if name in _PARSERS else name.partition(".")[0], 0.0)
    if new < least:
        raise CatalogError(f"device override {name}: {value!r} is {new:.3g}; allowed: at least {least:g}")
    if new > _MOST:
        raise CatalogError(f"device override {name}: {value!r} is {new:.3g}; allowed: at most {_MOST:g}")
    return new


def _with(datasheet: Datasheet, name: str, value: object) -> Datasheet:
    old = sourced_fields(datasheet).get(name)
    source = f"what-if {name}: {value}"
    new: Sourced[Any] | None = None
    if name not in _TEXTS:
        number = _changed(name, None if old is None else cast("float", old.value), value)
        new = Sourced[Any](value=number, source=source, checked=False)
        new = (
            new
            if old is None
            else old.model_copy(update={"value": number, "source": source, "checked": False})
        )
    head, _, tail = name.partition(".")
    if head == "peak_flops":
        return datasheet.model_copy(update={"peak_flops": {**datasheet.peak_flops, tail: new}})
    if head == "link":
        changed = {"bandwidth": new} if tail == "bandwidth" else {"type": _text(name, value)}
        return datasheet.model_copy(update={"link": datasheet.link.model_copy(update=changed)})
    if name == "hbm_type":
        kind = {"value": _text(name, value), "source": source, "checked": False}
        new = datasheet.hbm_type.model_copy(update=kind)
    return datasheet.model_copy(update={name: new})


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise CatalogError(f"device override {name}: {value!r} is no name; such as HBM4")
    return value
