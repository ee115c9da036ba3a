"""Which devices torch sees here, and what each one is."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from ..hwmodels.device import load_device
from ..hwmodels.errors import MemboundError, unknown
from .errors import KernelError
from .results import DeviceFacts

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_UNKNOWN_CPU_CACHE = 32 << 20
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def available() -> list[str]:
    """List the device strings that exist here."""
    return ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]


def resolve(device: str) -> torch.device:
    """Return torch's device of a string; ``cuda`` means ``cuda:0``.

    Raises
    ------
    KernelError : no such device here
    """
    text = device.strip().lower()
    name = "cuda:0" if text == "cuda" else "cpu" if text == "cpu:0" else text
    if name not in available():
        raise KernelError(unknown("device", device, available(), "this machine"))
    return torch.device(name)


def facts(device: torch.device) -> DeviceFacts:
    """Return what a device says of itself."""
    if device.type == "cpu":
        return DeviceFacts("cpu", cpu_name(), "cpu", torch.get_num_threads(), _cpu_cache(), _host_memory())
    card = torch.cuda.get_device_properties(device)
    return DeviceFacts(
        id=catalogue_id(card.name),
        name=card.name,
        kind="cuda",
        units=card.multi_processor_count,
        cache_bytes=int(getattr(card, "L2_cache_size", 0)) or _UNKNOWN_CPU_CACHE,
        memory_bytes=int(card.total_memory),
        devices=torch.cuda.device_count(),
    )


def catalogue_id(name: str) -> str:
    """Return the id under which the catalogue knows a card's driver name, else the name as an id.

    >>> catalogue_id("NVIDIA L40S"), catalogue_id("NVIDIA Nothing 9")
    ('l40s', 'nvidia_nothing_9')
    """
    bare = re.sub(r"(?i)^(nvidia|amd)\s+", "", name).strip()
    for candidate in (name, bare, re.sub(r"(?i)^(geforce|tesla|instinct)\s+", "", bare)):
        try:
            return load_device(candidate).id
        except MemboundError:
            continue
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def cpu_name() -> str:
    """Return the processor's name as the system prints it, or ``cpu``."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "cpu"
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else "cpu"


def _cpu_cache() -> int:
    """Return the largest cache that the first core sees [B]."""
    sizes = [_UNKNOWN_CPU_CACHE] if not _CACHES.is_dir() else []
    for path in _CACHES.glob("index*/size") if _CACHES.is_dir() else ():
        found = re.fullmatch(r"(\d+)([KMG]?)\s*", path.read_text())
        if found:
            sizes.append(int(found[1]) * _UNITS.get(found[2], 1))
    return max(sizes, default=_UNKNOWN_CPU_CACHE)


def _host_memory() -> int:
    try:
        text = Path("/proc/meminfo").read_text()
    except OSError:
        return 8 << 30
    found = re.search(r"^MemTotal:\s*(\d+) kB", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else 8 << 30
