"""What a kernel is to the timer: inputs made once, a run without arguments, and a wide reference to check it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .shape import KernelShape

if TYPE_CHECKING:
    from .source import Source

TOLERANCE = {"float32": 1e-5}
LOW_TOLERANCE = 1e-2
"""Largest relative error of a kernel's output, by dtype; 16-bit and narrower otherwise [-]."""


@dataclass(frozen=True, slots=True)
class Call:
    """One kernel with its inputs.

    Attributes
    ----------
    run : computes and returns the output; may be called any number of times
    reference : the same in float32, or float64 where the kernel itself is float32
    """

    run: Callable[[], Tensor]
    reference: Callable[[], Tensor]


@dataclass(frozen=True, slots=True)
class Kernel:
    """One implementation of one operation.

    Attributes
    ----------
    op, name : operation, and the implementation's name (a table's ``kernel_source``)
    dtypes : number formats it takes
    make : builds a call with inputs from a source
    missing : why it cannot run on a device, or None
    captured : whether it is timed as replayed from a graph where the device has graphs; else launch by launch
    """

    op: str
    name: str
    dtypes: tuple[str, ...]
    make: Callable[[KernelShape, Source], Call]
    missing: Callable[[torch.device, str], str | None] = lambda device, dtype: None
    captured: bool = True


def torch_dtype(name: str) -> torch.dtype:
    """Return torch's type of a table's ``dtype``; of quantised ones, what they compute and store outputs in."""
    return {"float16": torch.float16, "float32": torch.float32}.get(name, torch.bfloat16)


def wide(x: Tensor) -> Tensor:
    """Return a tensor as its reference computes with it: float64 for float32, float32 for all narrower ones."""
    return x.double() if x.dtype == torch.float32 else x.float()


def relative_error(call: Call) -> float:
    """Return the distance of a kernel's output from its reference, over the reference's norm [-]."""
    with torch.inference_mode():
        found, wanted = call.run(), call.reference()
        found = found.to(wanted.dtype)
        scale = torch.linalg.vector_norm(wanted)
        return float(torch.linalg.vector_norm(found - wanted) / scale.clamp_min(1e-30))


def tolerance(dtype: str) -> float:
    """Return the largest relative error that a kernel of a dtype may have [-]."""
    return TOLERANCE.get(dtype, LOW_TOLERANCE)


@lru_cache(maxsize=32)
def probe_failure(
    kernel_name: str, probe: Callable[[torch.device], object], device: torch.device
) -> str | None:
    """Run a probe on a device once and return why it failed, in one line, or None.

    A feature is asked for by trying it: what a version of torch offers on which card changes too often to list,
    and so do the errors by which it declines.
    """
    try:
        with torch.inference_mode():
            probe(device)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    except Exception as error:
        reason = str(error).strip().splitlines()
        return f"{kernel_name} does not run on {device}: {reason[0] if reason else type(error).__name__}"
    return None
