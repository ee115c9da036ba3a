"""What lies behind a device's memory: host memory, SSDs, remote stores, and how long KV blocks take to and fro.

A kind of tier is one YAML in ``tiers/`` (or a path). Nothing here is fitted: datasheet values, not validated.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Literal, Protocol

from pydantic import BaseModel, ConfigDict

from .catalog import find, ids, read_yaml
from .datasheet import Sourced
from .errors import CatalogError
from .steptypes import Phase
from .units import Bytes, Factor, PositiveCount, RateBytes, Seconds
from .validation import validate

TIERS = Path(__file__).parent / "tiers"
Direction = Literal["read", "write"]
HOST_LINK: Mapping[Direction, str] = {"read": "h2d", "write": "d2h"}
"""Resource that a transfer holds on the link to the host: it is full duplex."""


class TierDatasheet(BaseModel):
    """What a kind of tier offers one replica.

    Attributes
    ----------
    capacity : where the scenario gives none [B]
    read_bandwidth, write_bandwidth : towards the device, and away from it, of all its ranks together [B/s]
    latency : of one operation [s]
    queue_depth : operations of one block each that it works on at a time [-]
    host_link_share : share of the host link's datasheet rate that copies reach [-]
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    capacity: Sourced[Bytes]
    read_bandwidth: Sourced[RateBytes]
    write_bandwidth: Sourced[RateBytes]
    latency: Sourced[Seconds]
    queue_depth: Sourced[PositiveCount]
    host_link_share: Sourced[Factor]


class TierProfile(BaseModel):
    """One kind of tier: its datasheet values with their sources."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    id: str
    name: str
    aliases: tuple[str, ...] = ()
    notes: str = ""
    datasheet: TierDatasheet

    def bandwidth(self, direction: Direction) -> float:
        """Return the rate in one direction [B/s]."""
        sheet = self.datasheet
        return (sheet.read_bandwidth if direction == "read" else sheet.write_bandwidth).value


class HostedDevice(Protocol):
    """The part of a ``DeviceProfile`` that transfers go through."""

    @property
    def id(self) -> str: ...
    @property
    def hbm_bandwidth(self) -> float: ...
    @property
    def pcie_bandwidth(self) -> float | None: ...
    @property
    def c2c_bandwidth(self) -> float | None: ...
    @property
    def link_type(self) -> str: ...
    @property
    def link_bandwidth(self) -> float: ...


def list_tiers() -> list[str]:
    """List the ids of the bundled kinds, sorted."""
    return ids(TIERS)


def load_tier(what: str | os.PathLike[str]) -> TierProfile:
    """Load a kind of tier by id or path.

    Raises
    ------
    CatalogError : unknown kind, or a malformed file

    Examples
    --------
    >>> load_tier("nvme").bandwidth("read")
    12000000000.0
    """
    path = find("KV tier", what, TIERS)
    return _read(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=16)
def _read(path: Path, _mtime_ns: int) -> TierProfile:
    profile = validate(TierProfile, read_yaml(path, "KV tier"), "KV tier", str(path))
    sheet = profile.datasheet
    for key in ("read_bandwidth", "write_bandwidth", "host_link_share"):
        if not getattr(sheet, key).value > 0:
            raise CatalogError(f"KV tier file {str(path)!r}: datasheet.{key} is 0; allowed: above 0")
    return profile


def store_seconds(tier: TierProfile, direction: Direction, blocks: int, block_bytes: float) -> float:
    """Return how long a tier alone takes for so many blocks [s]; ``block_bytes`` are those of all ranks [B].

    One latency, and then whatever is slower: its bandwidth, or ``queue_depth`` operations a latency.
    """
    sheet = tier.datasheet
    rounds = -(-blocks // sheet.queue_depth.value) - 1
    moving = blocks * block_bytes / tier.bandwidth(direction)
    return sheet.latency.value + max(moving, rounds * sheet.latency.value)


def host_link(device: HostedDevice) -> float:
    """Return the rate of a device's link to its host, one direction: chip to chip where there is one, else PCIe [B/s].

    Raises
    ------
    CatalogError : the device's file does not say
    """
    if device.c2c_bandwidth is not None:
        return device.c2c_bandwidth
    if device.pcie_bandwidth is None:
        raise CatalogError(
            f"device {device.id!r} states no link to its host, which KV tiers need; set device to "
            f"{{base: {device.id}, pcie_bandwidth: 32GB/s}}"
        )
    return device.pcie_bandwidth


def transfer_phase(
    tier: TierProfile, device: HostedDevice, direction: Direction, blocks: int, block_bytes: float, ranks: int
) -> Phase:
    """Return the copy of blocks between a tier and the memory of every rank, as work on the shared resources.

    Every rank moves its own part of a block over its own host link; the tier serves all of them together. The
    copy takes as long as the slower side and holds HBM and host link for what the bytes take there.

    Parameters
    ----------
    tier, device : where the blocks are, and whose memory they go to or come from
    direction : ``read`` restores, ``write`` offloads
    blocks : how many [blocks]
    block_bytes : one block on one rank [B]
    ranks : tensor-parallel ranks

    Raises
    ------
    CatalogError : the device's file does not state a host link
    """
    moved, wire = blocks * block_bytes, host_link(device)
    over_link = moved / (tier.datasheet.host_link_share.value * wire)
    at_tier = store_seconds(tier, direction, blocks, block_bytes * ranks)
    seconds = max(at_tier, tier.datasheet.latency.value + over_link)
    demands = {"hbm": min(moved / device.hbm_bandwidth, seconds), HOST_LINK[direction]: over_link}
    if ranks > 1 and device.link_type.lower().startswith("pcie"):
        demands["link"] = min(moved / device.link_bandwidth, seconds)
    return Phase(f"KV {direction} {tier.id}", seconds, demands)
