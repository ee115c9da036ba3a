"""The device that a measuring run timed: its catalogue entry, or a profile made of what the run itself saw.

A CPU has no datasheet to speak of: its peak and bandwidth are those of a first quick timing, the fitted shares refer to
them, and the form is fixed time plus compute plus memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ..hwmodels.device import DeviceProfile, load_device
from ..hwmodels.errors import CatalogError
from .errors import CalibrationError
from .machine import Machine, machine_from
from .table import KernelTable

CPU: Final = "cpu"
_PEAKS: Final = {"bf16": "gemm", "fp32": "gemm/float32", "int8": "gemm/int8"}


def device_of(environment: Mapping[str, Any]) -> DeviceProfile:
    """Return the profile of the device that a run's environment names.

    Raises
    ------
    CalibrationError : an environment without a machine, or a GPU that the catalogue does not have
    """
    if "machine" not in environment:
        raise CalibrationError("the run's environment names no machine; measure again into another folder")
    machine = machine_from(environment["machine"])
    if machine.kind == CPU:
        return cpu_device(machine)
    try:
        return load_device(machine.id)
    except CatalogError as error:
        raise CalibrationError(
            f"{error}; write a device YAML with its datasheet and name it with --device"
        ) from None


def of_device(table: KernelTable, device: DeviceProfile) -> KernelTable:
    """Return the rows of a table that are of a device, where it holds several GPUs and that one among them."""
    gpus = set(table["gpu"].tolist())
    names = {_plain(name) for name in (device.id, device.name, *device.aliases)}
    own = {gpu for gpu in gpus if _plain(gpu) in names}
    return table.only(gpu=sorted(own)) if own and own != gpus else table


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


def cpu_device(machine: Machine) -> DeviceProfile:
    """Return the profile of a CPU, one thread of it, without lanes."""
    rates = {dtype: machine.flop_rate[key] for dtype, key in _PEAKS.items() if key in machine.flop_rate}
    base = machine.flop_rate.get("gemm", machine.flop_rate[""])

    def seen(value: object) -> dict[str, object]:
        return {"value": value, "source": "first quick timings of the run", "checked": False}

    return DeviceProfile.model_validate(
        {
            "id": CPU,
            "name": "CPU, one thread",
            "vendor": "unknown",
            "arch": "CPU",
            "form": "roofline3",
            "notes": "Peaks and bandwidth are first timings; shares of them may exceed 1.",
            "datasheet": {
                "hbm_capacity": seen(machine.memory_bytes),
                "usable_memory": seen(machine.memory_bytes),
                "hbm_type": seen("main memory"),
                "hbm_bandwidth": seen(machine.bandwidth),
                "peak_flops": {dtype: seen(rate) for dtype, rate in ({"bf16": base} | rates).items()},
                "n_sm": seen(1),
                "link": {"type": "memory", "bandwidth": seen(machine.bandwidth)},
            },
        }
    )
