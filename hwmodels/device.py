"""What a device is: datasheet values with their sources, fitted lanes, and whose lanes it borrows.

A device is one YAML in ``devices/`` (or a path); nothing about it is in code. Values are SI.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict

from .catalog import find, ids, read_yaml
from .datasheet import Datasheet
from .errors import CatalogError, unknown
from .lanes import FittedLane, Lane, LatencyTable, Level, as_lane
from .links import sheet
from .notebook import html, html_table
from .prices import Price, list_price
from .same import Same
from .validation import validate
from .whatif import changed_datasheet

DEVICES = Path(__file__).parent / "devices"
TRANSFERRED: tuple[Level, ...] = ("transferred_same_arch", "transferred_cross_arch")


class DeviceProfile(BaseModel):
    """One device: datasheet, fitted lanes, and where missing lanes are borrowed.

    Attributes
    ----------
    form : ``tiles`` (the timing forms of GPUs) or ``roofline3`` (fixed time, peak share, bandwidth share)
    transfer_from : id of the nearest device with lanes of its own
    fitted : lanes by kernel family, then by software lane
    whatif : True if datasheet values were overridden
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    id: str
    name: str
    vendor: str
    arch: str
    form: Literal["tiles", "roofline3"] = "tiles"
    aliases: tuple[str, ...] = ()
    notes: str = ""
    datasheet: Datasheet
    transfer_from: str | None = None
    fitted: dict[str, dict[str, FittedLane]] = {}
    whatif: bool = False

    def __reduce__(self) -> tuple[object, tuple[str]]:
        """Pickle by value: the classes of sourced figures have no name that another process could import."""
        return type(self).model_validate_json, (self.model_dump_json(),)

    def _repr_html_(self) -> str:
        """Show the datasheet's main figures and the fitted lanes."""
        figures: list[list[object]] = [
            ["HBM bandwidth [TB/s]", self.hbm_bandwidth / 1e12],
            ["usable memory [GiB]", self.usable_bytes / 2**30],
            *([f"dense {dtype} [TFLOP/s]", rate / 1e12] for dtype, rate in self.peak_flops.items()),
            ["link, one direction [GB/s]", self.link_bandwidth / 1e9],
        ]
        lanes = [[family, ", ".join(lanes)] for family, lanes in self.fitted.items()]
        title = f"{self.name} ({self.id}){' · what-if' if self.whatif else ''}"
        return html(title, html_table(["datasheet", ""], figures), html_table(["fitted", "lanes"], lanes))

    @property
    def hbm_bandwidth(self) -> float:
        """HBM bandwidth, one direction [B/s]."""
        return self.datasheet.hbm_bandwidth.value

    @property
    def hbm_bytes(self) -> int:
        """Memory as sold [B]."""
        return self.datasheet.hbm_capacity.value

    @property
    def usable_bytes(self) -> int:
        """Memory that the driver reports as total [B]."""
        return self.datasheet.usable_memory.value

    @property
    def peak_flops(self) -> Mapping[str, float]:
        """Dense matrix rate by dtype, for the dtypes that the device has [FLOP/s]."""
        return {dtype: rate.value for dtype, rate in self.datasheet.peak_flops.items()}

    @property
    def n_sm(self) -> int:
        """Compute units [-]."""
        return self.datasheet.n_sm.value

    @property
    def l2_bytes(self) -> int:
        """Last-level cache that all units share; 0 where there is none or it is unknown [B]."""
        return self.datasheet.l2.value if self.datasheet.l2 else 0

    @property
    def smem_bytes_per_sm(self) -> int | None:
        """On-chip memory of one compute unit; None where unknown [B]."""
        return self.datasheet.smem_per_sm.value if self.datasheet.smem_per_sm else None

    @property
    def boost_hz(self) -> float | None:
        """Boost clock; None where unknown [Hz]."""
        return self.datasheet.boost.value if self.datasheet.boost else None

    @property
    def tdp_w(self) -> float | None:
        """Board power limit; None where unknown [W]."""
        return self.datasheet.tdp.value if self.datasheet.tdp else None

    @property
    def link_bandwidth(self) -> float:
        """Bandwidth to the other devices of the node, one direction [B/s]."""
        return self.datasheet.link.bandwidth.value

    @property
    def link_type(self) -> str:
        """Kind of that link."""
        return self.datasheet.link.type

    @property
    def pcie_bandwidth(self) -> float | None:
        """Bandwidth to the host, one direction; None where unknown [B/s]."""
        return self.datasheet.pcie.value if self.datasheet.pcie else None

    @property
    def c2c_bandwidth(self) -> float | None:
        """Bandwidth to the processor in the same module, one direction; None where there is none [B/s]."""
        return self.datasheet.c2c.value if self.datasheet.c2c else None

    @property
    def price(self) -> Price | None:
        """On-demand list price with its provider and date; None where none is known."""
        return list_price(self.id)

    @property
    def price_usd_per_hour(self) -> float | None:
        """On-demand list price of one device [USD/h]; None where none is known."""
        return self.price.usd_per_hour if self.price else None

    @property
    def digest(self) -> str:
        """First 16 hex digits of the SHA-256 of everything above, for provenance."""
        return _digest(Same(self))

    def families(self) -> list[str]:
        """List the kernel families for which ``lane`` has an answer, sorted."""
        return sorted({*self.fitted, *_lent(self.transfer_from, self.form)})

    def lane(self, family: str, lane: str = "vllm") -> Lane:
        """Return the parameters of one kernel family.

        The order is: this device's own lane; another software lane of this device, the first that its
        file lists; the same from the relative that ``transfer_from`` names, labelled transferred.
        ``Lane.lane`` and ``Lane.device`` say which one was taken.

        Parameters
        ----------
        family : kernel family (``gemm``, ``decode_attention``, ``allreduce``, ...)
        lane : software lane (``vllm``, ``trtllm``, ``sglang``, ``torch``)

        Raises
        ------
        CatalogError : unknown family, or a family that neither the device nor its relatives have

        Examples
        --------
        >>> load_device("h200_sxm").lane("gemm").level
        'transferred_same_arch'
        """
        own = self.fitted.get(family)
        if own:
            chosen = lane if lane in own else next(iter(own))
            found = as_lane(own[chosen], family, chosen, self.id)
            return _as_whatif(found) if self.whatif else found
        # Nobody's whole file is read to learn that it has no such lane.
        known = family == "allreduce" or family in _lent(self.transfer_from, self.form)
        relative = _lender(self, family) if known else None
        if relative is None or relative.form != self.form:
            raise CatalogError(unknown("kernel family", family, self.families(), f"the lanes of {self.id}"))
        try:
            borrowed = relative.lane(family, lane)
        except CatalogError:
            raise CatalogError(
                unknown("kernel family", family, self.families(), f"the lanes of {self.id}")
            ) from None
        return _transferred(borrowed, relative, self)


def load_device(
    what: str | os.PathLike[str] | Mapping[str, object], relative_to: Path | None = None
) -> DeviceProfile:
    """Load a device by id, alias or path, or a what-if variant of one.

    Parameters
    ----------
    what : ``h100_sxm``, ``H100-SXM-80GB``, ``./my.yaml``, or
        ``{base: h100_sxm, hbm_bandwidth: x1.5, hbm_capacity: 192GB, peak_flops.bf16: x1.2}``
    relative_to : folder that relative paths start from; default: the working folder

    Raises
    ------
    CatalogError : unknown device or override, or a malformed file
    UnitError : an override that is no quantity of its kind

    Examples
    --------
    >>> load_device("H100-SXM-80GB").hbm_bandwidth
    3350000000000.0
    """
    if isinstance(what, Mapping):
        base = what.get("base")
        if not isinstance(base, str | Path):
            text = "needs 'base': the id or path of the device it is a variant of"
            raise CatalogError(f"device {dict(what)!r} {text}")
        changes = {key: value for key, value in what.items() if key != "base"}
        return _variant(load_device(base, relative_to), changes)
    path = find("device", what, DEVICES, relative_to=relative_to)
    return _read(path, path.stat().st_mtime_ns)


def list_devices() -> list[str]:
    """List the ids of the bundled devices, sorted."""
    return ids(DEVICES)


@lru_cache(maxsize=64)
def _digest(profile: Same[DeviceProfile]) -> str:
    return hashlib.sha256(profile.it.model_dump_json().encode()).hexdigest()[:16]


@lru_cache(maxsize=64)
def _read(path: Path, _mtime_ns: int) -> DeviceProfile:
    profile = validate(DeviceProfile, read_yaml(path, "device"), "device", str(path))
    if path.parent == DEVICES and profile.id != path.stem:
        raise CatalogError(f"device file {path.name!r} holds id {profile.id!r}; the two must be equal")
    return profile


def _variant(base: DeviceProfile, changes: Mapping[str, object]) -> DeviceProfile:
    """Apply what-if changes; fitted shares and times stay, so the result is a prediction and says so."""
    if not changes:
        return base
    datasheet = changed_datasheet(base.datasheet, changes, base.id)
    update: dict[str, object] = {"datasheet": datasheet, "whatif": True}
    if datasheet.link != base.datasheet.link:
        update["fitted"] = {family: _without_tables(lanes) for family, lanes in base.fitted.items()}
    return base.model_copy(update=update)


def _without_tables(lanes: Mapping[str, FittedLane]) -> dict[str, FittedLane]:
    """Drop tables measured on another link; the form scales with the link, a table does not."""
    return {name: lane.model_copy(update={"table": None}) for name, lane in lanes.items()}


def _relative(device: DeviceProfile) -> DeviceProfile | None:
    return load_device(device.transfer_from) if device.transfer_from else None


def _lent(name: str | None, form: str) -> frozenset[str]:
    """Return the kernel families that a relative has lanes of, its own and borrowed ones; none if its form differs.

    Of a bundled device they are read off the text of its file, without parsing the rest of it.
    """
    if name is None:
        return frozenset()
    path = DEVICES / f"{name}.yaml"
    if path.is_file():
        families, its_form, relative = _outline(path, path.stat().st_mtime_ns)
        return families | _lent(relative, form) if its_form == form else frozenset()
    found = load_device(name)
    return frozenset(found.families()) if found.form == form else frozenset()


@lru_cache(maxsize=64)
def _outline(path: Path, _mtime_ns: int) -> tuple[frozenset[str], str, str | None]:
    """Return the fitted families, form and relative that a bundled file names."""
    head, _, fitted = path.read_text(encoding="utf-8").partition("\nfitted:\n")
    form, relative = (re.search(rf"^{key}: (\w+)$", head, re.MULTILINE) for key in ("form", "transfer_from"))
    families = frozenset(re.findall(r"^  (\w+):$", fitted, re.MULTILINE))
    return families, form[1] if form else "tiles", relative[1] if relative else None


def _lender(device: DeviceProfile, family: str) -> DeviceProfile | None:
    """Return whose lanes a device borrows; of all-reduces, who has its kind of link, if its relative has another."""
    relative = _relative(device)
    if relative is None or family != "allreduce" or relative.link_type == device.link_type:
        return relative
    measured = sheet().measured_on.get(device.link_type)
    return relative if measured is None else load_device(measured)


def _transferred(lane: Lane, lender: DeviceProfile, to: DeviceProfile) -> Lane:
    """Label a borrowed lane; a measured table goes along only where the kind of link is the same."""
    origin = load_device(lane.device)
    level: Level = "transferred_same_arch" if origin.arch == to.arch else "transferred_cross_arch"
    return replace(
        lane,
        level=level,
        source=lane.source if lane.level in TRANSFERRED else f"{lane.source}; transferred from {lane.device}",
        table=_carried(lane.table, lender, to),
    )


def _carried(table: LatencyTable | None, lender: DeviceProfile, to: DeviceProfile) -> LatencyTable | None:
    """Return what a table says of another device: the same over the same link, stretched over slower or faster PCIe."""
    if table is None or lender.link_type != to.link_type:
        return None
    if lender.link_bandwidth == to.link_bandwidth:
        return table
    if to.link_type not in sheet().measured_on:
        return None
    return table.stretched(lender.link_bandwidth / to.link_bandwidth)


def _as_whatif(lane: Lane) -> Lane:
    return replace(lane, level="transferred_same_arch", source=f"{lane.source}; what-if on {lane.device}")
