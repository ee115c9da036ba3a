"""Links that no device has by itself: between machines, and PCIe in place of a faster one."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

from pydantic import BaseModel, ConfigDict

from .catalog import read_yaml
from .datasheet import Link, Sourced
from .device import DeviceProfile, load_device
from .errors import CatalogError, UnitError, unknown
from .lanes import FittedLane
from .timing.hop import Network
from .units import RateBytes, Seconds, parse_rate_bytes
from .validation import validate

LINKS = Path(__file__).parent / "links.yaml"


class NetworkSheet(BaseModel):
    """A network between machines, seen from one device: bandwidth in one direction [B/s], latency of a message [s]."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    bandwidth: Sourced[RateBytes]
    latency: Sourced[Seconds]


class LinkSheet(BaseModel):
    """What ``links.yaml`` holds."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    networks: dict[str, NetworkSheet]
    measured_on: dict[str, str]


@lru_cache(maxsize=1)
def sheet() -> LinkSheet:
    """Return the bundled links."""
    return validate(LinkSheet, read_yaml(LINKS, "links"), "links", str(LINKS))


def network(name: str, where: str = "node.inter_node_link") -> Network:
    """Return a network by its name, or of a bandwidth with the latency of the first one listed.

    Raises
    ------
    CatalogError : neither a name nor a bandwidth

    Examples
    --------
    >>> network("infiniband").bandwidth, network("25GB/s").bandwidth
    (50000000000.0, 25000000000.0)
    """
    known = sheet().networks
    if name.lower() in known:
        found = known[name.lower()]
        return Network(found.bandwidth.value, found.latency.value)
    try:
        bandwidth = parse_rate_bytes(name)
    except UnitError:
        bandwidth = 0.0
    if bandwidth <= 0:
        raise CatalogError(unknown("network", name, known, where) + "; or a bandwidth (25GB/s)")
    return Network(bandwidth, next(iter(known.values())).latency.value)


def over_pcie(device: DeviceProfile) -> DeviceProfile:
    """Return the device with its neighbours behind PCIe: its own PCIe rate, all-reduces as measured over PCIe.

    Raises
    ------
    CatalogError : a device whose PCIe rate is not known
    """
    if device.link_type == "PCIe":
        return device
    rate = device.datasheet.pcie
    if rate is None:
        raise CatalogError(f"node.link: 'pcie', but the PCIe rate of {device.id} is not known; allowed: auto")
    link = Link(type="PCIe", bandwidth=rate)
    lanes = _all_reduces(load_device(sheet().measured_on["PCIe"]), rate.value)
    return device.model_copy(
        update={
            "datasheet": device.datasheet.model_copy(update={"link": link}),
            "fitted": {**device.fitted, "allreduce": lanes},
        }
    )


def _all_reduces(measured: DeviceProfile, bandwidth: float) -> Mapping[str, FittedLane]:
    """Return the all-reduce lanes of a device, their tables brought to another bandwidth."""
    ratio = measured.link_bandwidth / bandwidth
    return {name: _scaled(lane, ratio, measured.id) for name, lane in measured.fitted["allreduce"].items()}


def _scaled(lane: FittedLane, ratio: float, origin: str) -> FittedLane:
    """Return a lane whose table takes ``ratio`` times as long beyond its shortest message."""
    table = lane.table
    if table is not None:
        rows: dict[int, tuple[float | None, ...]] = {}
        for group, row in table.latency_us.items():
            fixed = min(time for time in row if time is not None)
            rows[group] = tuple(None if time is None else fixed + ratio * (time - fixed) for time in row)
        table = table.model_copy(update={"latency_us": rows})
    return lane.model_copy(
        update={"table": table, "level": "prior", "source": f"{lane.source}; over PCIe, from {origin}"}
    )
