"""What-if devices: one datasheet value replaced or multiplied, everything fitted kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

from .datasheet import Datasheet, sourced_fields
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
#: below these [B/s, FLOP/s] steps would last for years
_LEAST = {"hbm_bandwidth": 1e6, "peak_flops": 1e9, "link.bandwidth": 1e3}
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
    it is given too. ``peak_flops: x2`` multiplies every dtype, ``peak_flops.bf16`` one of them.

    Raises
    ------
    CatalogError : a key that is no datasheet value of this device, or a value of zero
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
        elif leaf not in leaves or leaf == "hbm_type":
            allowed = ["base", "peak_flops", *(known for known in leaves if known != "hbm_type")]
            raise CatalogError(unknown("device override", name, allowed, device, shown=20))
        else:
            flat[leaf] = value
    return flat


def _changed(name: str, old: float, value: object) -> float:
    parser = _PARSERS[name if name in _PARSERS else name.partition(".")[0]]
    new = old * parse_factor(value) if is_factor(value) else parser(value)
    new = round(new) if isinstance(old, int) else float(new)
    if new <= 0:
        raise CatalogError(f"device override {name}: {value!r} must be above 0")
    least = _LEAST.get(name if name in _PARSERS else name.partition(".")[0], 0.0)
    if new < least:
        raise CatalogError(f"device override {name}: {value!r} is {new:.3g}; allowed: at least {least:g}")
    return new


def _with(datasheet: Datasheet, name: str, value: object) -> Datasheet:
    old = sourced_fields(datasheet)[name]
    number = _changed(name, cast("float", old.value), value)
    new = old.model_copy(update={"value": number, "source": f"what-if {name}: {value}", "checked": False})
    head, _, tail = name.partition(".")
    if head == "peak_flops":
        return datasheet.model_copy(update={"peak_flops": {**datasheet.peak_flops, tail: new}})
    if head == "link":
        return datasheet.model_copy(update={"link": datasheet.link.model_copy(update={"bandwidth": new})})
    return datasheet.model_copy(update={name: new})
