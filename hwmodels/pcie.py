"""A device whose neighbours are behind PCIe in place of its own link."""

from __future__ import annotations

from collections.abc import Mapping

from .datasheet import Link
from .device import DeviceProfile, load_device
from .errors import CatalogError
from .lanes import FittedLane
from .links import sheet


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
    return {
        name: lane.model_copy(
            update={
                "table": lane.table and lane.table.stretched(ratio),
                "level": "prior",
                "source": f"{lane.source}; over PCIe, from {measured.id}",
            }
        )
        for name, lane in measured.fitted["allreduce"].items()
    }
