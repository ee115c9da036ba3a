"""Links that no device has by itself: networks between machines, and where a kind of link was measured."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import ClassVar

from pydantic import BaseModel, ConfigDict

from .catalog import read_yaml
from .datasheet import Sourced
from .errors import CatalogError, UnitError, unknown
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
