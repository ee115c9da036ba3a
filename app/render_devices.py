"""Devices as text: a list to choose from, and one with every value, its source and its kernels' level."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ..hwmodels.datasheet import Datasheet, Link, Sourced
from ..hwmodels.device import DeviceProfile, load_device
from ..hwmodels.lanes import Lane
from ..hwmodels.prices import offers
from ..hwmodels.units import format_bytes, format_flops, format_rate_bytes
from ..sim.output.output import to_json
from ..sim.setup import FAMILIES, level_of
from .text import WIDTH, csv_of, gib, labelled, number, table, text_of

WRITE: Mapping[str, Callable[[Any], str]] = {
    "hbm_capacity": lambda size: f"{size / 1e9:.0f} GB",
    "usable_memory": format_bytes,
    "hbm_bandwidth": format_rate_bytes,
    "peak_flops": format_flops,
    "l2": format_bytes,
    "smem_per_sm": format_bytes,
    "boost": lambda rate: f"{rate / 1e6:.0f} MHz",
    "tdp": lambda power: f"{power:.0f} W",
    "link": format_rate_bytes,
    "pcie": format_rate_bytes,
}


def render_devices(devices: Sequence[DeviceProfile], form: str) -> str:
    """Return one line a device: what bounds it, what it costs, and how well its kernels are known."""
    rows = [_row(device) for device in devices]
    if form == "json":
        return to_json(rows)
    if form == "csv":
        return csv_of(rows)
    header = [
        "device",
        "GiB",
        "TB/s",
        "bf16 TFLOP/s",
        "fp8 TFLOP/s",
        "FLOP/B",
        "link GB/s",
        "USD/h",
        "kernels",
    ]
    lines = table(header, [_cells(row) for row in rows], right=range(1, 8))
    notes = [
        "GiB: memory as the driver reports it. FLOP/B: ridge point, bf16 rate over HBM bandwidth; what does "
        + "fewer operations a byte waits for memory. Rates are dense, links one direction.",
        "kernels: how well their times are known. membound devices NAME shows every value with its source.",
    ]
    return text_of([*lines, "", *(line for note in notes for line in labelled("", note))])


def _row(device: DeviceProfile) -> dict[str, Any]:
    return {
        "id": device.id,
        "name": device.name,
        "vendor": device.vendor,
        "arch": device.arch,
        "usable_bytes": device.usable_bytes,
        "hbm_bandwidth_bytes_per_s": device.hbm_bandwidth,
        "bf16_flops": device.peak_flops.get("bf16"),
        "fp8_flops": device.peak_flops.get("fp8"),
        "ridge_flop_per_byte": _ridge(device),
        "link_bandwidth_bytes_per_s": device.link_bandwidth,
        "usd_per_hour": device.price_usd_per_hour,
        "level": level_of(device, "vllm", FAMILIES),
    }


def _cells(row: Mapping[str, Any]) -> list[str | None]:
    def rate(name: str, unit: float) -> str | None:
        return None if row[name] is None else f"{row[name] / unit:,.0f}"

    price = row["usd_per_hour"]
    return [
        row["id"],
        gib(row["usable_bytes"])[:-1],
        f"{row['hbm_bandwidth_bytes_per_s'] / 1e12:.2f}",
        rate("bf16_flops", 1e12),
        rate("fp8_flops", 1e12),
        rate("ridge_flop_per_byte", 1),
        rate("link_bandwidth_bytes_per_s", 1e9),
        None if price is None else f"{price:.2f}",
        row["level"].replace("_", " "),
    ]


def _ridge(device: DeviceProfile) -> float | None:
    """Return the operations per byte at which the bf16 rate and the memory bound alike [FLOP/B]."""
    peak = device.peak_flops.get("bf16")
    return None if peak is None else peak / device.hbm_bandwidth


def render_device(device: DeviceProfile, form: str, *, parameters: bool = False) -> str:
    """Return everything known of one device.

    Parameters
    ----------
    form : ``table``, ``json``, or ``csv`` (the datasheet alone)
    parameters : also every fitted number of every lane
    """
    values = list(_values(device.datasheet))
    if form == "json":
        lanes = [_lane_row(lane) for lane in lanes_of(device)]
        return to_json({**_row(device), "datasheet": values, "prices": _prices(device), "lanes": lanes})
    if form == "csv":
        return csv_of(values)
    title = f"{device.id} · {device.name} · {device.arch}" + (" · what-if" if device.whatif else "")
    ridge = _ridge(device)
    lines = [
        *labelled("", title),
        *labelled("also", ", ".join(device.aliases)),
        *labelled("ridge point", _ridge_words(ridge)),
        *labelled("price", [_price_words(price) for price in _prices(device)]),
        *labelled("notes", device.notes),
        "",
        *table(
            ["datasheet", "value", "checked", "source"],
            [[row["name"], row["shown"], "yes" if row["checked"] else "no", row["source"]] for row in values],
            wrap=True,
        ),
        "",
        *_lane_table(lanes_of(device)),
    ]
    if parameters:
        lines += ["", *_parameter_table(device)]
    return text_of(lines)


def _ridge_words(ridge: float | None) -> str:
    if ridge is None:
        return ""
    return (
        f"{ridge:.0f} FLOP/B (bf16): a kernel with fewer operations for each byte it reads waits for memory"
    )


def _values(datasheet: Datasheet) -> Iterator[dict[str, Any]]:
    """Yield every datasheet value in the order of the file."""
    for name in type(datasheet).model_fields:
        value = getattr(datasheet, name)
        if isinstance(value, Link):
            shown = f"{format_rate_bytes(value.bandwidth.value)} {value.type}"
            yield _value(f"{name}.bandwidth", value.bandwidth, shown)
        elif isinstance(value, Mapping):
            for dtype, rate in value.items():
                yield _value(f"{name}.{dtype}", rate, WRITE[name](rate.value))
        elif isinstance(value, Sourced):
            yield _value(name, value, WRITE.get(name, str)(value.value))


def _value(name: str, value: Sourced[Any], shown: str) -> dict[str, Any]:
    row = {"name": name, "value": value.value, "shown": shown}
    return row | {"checked": value.checked, "source": value.source}


def _prices(device: DeviceProfile) -> list[dict[str, Any]]:
    return [price.model_dump() for price in offers().get(device.id, ())]


def _price_words(price: Mapping[str, Any]) -> str:
    spot = price["spot_usd_per_hour"]
    return f"{price['usd_per_hour']:.2f} USD/h {price['provider']} ({price['dated']})" + (
        f", spot {spot:.2f}" if spot else ""
    )


def lanes_of(device: DeviceProfile) -> list[Lane]:
    """Return every lane of a device, those of its relative where it has none of its own."""
    return [device.lane(family, lane) for family in device.families() for lane in _lane_names(device, family)]


def _lane_names(device: DeviceProfile, family: str) -> list[str]:
    own = device.fitted.get(family)
    if own or not device.transfer_from:
        return list(own or ())
    return _lane_names(load_device(device.transfer_from), family)


def _lane_table(lanes: Sequence[Lane]) -> list[str]:
    """Return a line a lane, with its source below it."""
    header = ["kernels", "lane", "level", "fitted on"]
    title, rule, *rows = table(
        header, [[lane.family, lane.lane, _level(lane), lane.device] for lane in lanes]
    )
    sources = (
        textwrap.wrap(lane.source, WIDTH, initial_indent="    ", subsequent_indent="    ") for lane in lanes
    )
    return [
        title,
        rule,
        *(line for row, source in zip(rows, sources, strict=True) for line in (row, *source)),
    ]


def _level(lane: Lane) -> str:
    return lane.level.replace("_", " ")


def _lane_row(lane: Lane) -> dict[str, Any]:
    return {
        "family": lane.family,
        "lane": lane.lane,
        "level": lane.level,
        "device": lane.device,
        "source": lane.source,
        "hull": {axis: list(limits) for axis, limits in lane.hull.items()},
        "parameters": {
            name: {"value": value, "stderr": lane.stderr[name]} for name, value in lane.params.items()
        },
    }


def _parameter_table(device: DeviceProfile) -> list[str]:
    rows = [
        [lane.family, lane.lane, name, number(value), number(lane.stderr[name])]
        for lane in lanes_of(device)
        for name, value in lane.params.items()
    ]
    return table(["kernels", "lane", "parameter", "value", "stderr"], rows, right=[3, 4])
