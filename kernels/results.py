"""What timing a kernel gives; free of torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timing:
    """One kernel's time.

    Attributes
    ----------
    seconds : median over the repeats [s]
    spread : half the distance of the quartiles over the median [-]
    repeats, inner : repeats, and calls in each
    clock : ``cuda_graph``, ``cuda_events``, ``thread`` or ``wall``
    """

    seconds: float
    spread: float
    repeats: int
    inner: int
    clock: str


@dataclass(frozen=True, slots=True)
class Measured:
    """A kernel's time, and how far its output is from the reference.

    Attributes
    ----------
    timing : None where the check failed
    error, allowed : relative error and its bound [-]
    flop, moved_bytes : necessary work of a call [FLOP, B]
    """

    timing: Timing | None
    error: float
    allowed: float
    flop: float
    moved_bytes: float


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What a device says of itself.

    Attributes
    ----------
    id : ``cpu``, the catalogue's id where it knows the card, else the card's name in lower case
    name : as the driver or the system prints it
    kind : ``cpu`` or ``cuda``
    units : compute units; on the CPU the threads used
    cache_bytes : last-level cache [B]
    memory_bytes : memory in all [B]
    devices : devices of this kind in the machine
    """

    id: str
    name: str
    kind: str
    units: int
    cache_bytes: int
    memory_bytes: int
    devices: int = 1


@dataclass(frozen=True, slots=True)
class Overlap:
    """Times of a kernel, of a copy, and of both started at once.

    Attributes
    ----------
    kernel_s, copy_s : each alone [s]
    both_s : from the start of both to the end of the later one [s]
    kernel_bytes, copy_bytes : moved by each [B]
    """

    kernel_s: float
    copy_s: float
    both_s: float
    kernel_bytes: float
    copy_bytes: float
