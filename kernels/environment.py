"""The record of what a run was made with: device, clocks, power, versions, threads."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version

import torch

from .devices import facts

_FIELDS = ("clocks.sm", "clocks.mem", "temperature.gpu", "power.draw")
_NAMES = ("sm_mhz", "memory_mhz", "temperature_c", "power_w")
_FACTS = ("driver_version", "clocks.max.sm", "clocks.max.mem", "power.limit", "ecc.mode.current")
_PACKAGES = ("torch", "triton", "numpy", "vllm", "flashinfer-python", "sglang")
_FLAGS = (
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_TF32_OVERRIDE",
    "PYTORCH_CUDA_ALLOC_CONF",
    "TORCH_LOGS",
)
"""Settings of the shell that change what is timed: blocking launches once made a gain of 5-10 % look like 30-50 %."""


def environment(device: torch.device) -> dict[str, object]:
    """Return what a reader of the numbers must know; what the machine does not tell is left out."""
    record: dict[str, object] = {
        "device": asdict(facts(device)),
        "python": platform.python_version(),
        "system": platform.system(),
        "machine": platform.machine(),
        "packages": {name: found for name in _PACKAGES if (found := _version(name))},
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "flags": {name: os.environ[name] for name in _FLAGS if name in os.environ},
        "state": state(device),
    }
    if device.type == "cuda":
        record["cuda"] = torch.version.cuda
        record["capability"] = list(torch.cuda.get_device_capability(device))
        record["card"] = _ask(device, _FACTS)
    else:
        record["capability"] = torch.backends.cpu.get_cpu_capability()
        record["matmul_precision"] = torch.get_float32_matmul_precision()
    return record


def state(device: torch.device) -> dict[str, float]:
    """Return clocks [MHz], temperature [C] and power [W] of a card now, as far as its driver tells."""
    if device.type != "cuda":
        return {"load": os.getloadavg()[0]} if hasattr(os, "getloadavg") else {}
    told = _ask(device, _FIELDS)
    found: dict[str, float] = {}
    for name, field in zip(_NAMES, _FIELDS, strict=True):
        try:
            found[name] = float(told[field])
        except (KeyError, ValueError):
            continue
    return found


def _ask(device: torch.device, fields: tuple[str, ...]) -> dict[str, str]:
    """Ask the driver's command-line tool, where there is one.

    Approximation: the tool counts all cards of the machine; where only some of them are visible to us, the n-th
    visible one is taken to be the n-th it prints.
    """
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return {}
    command = [
        tool,
        f"--query-gpu={','.join(fields)}",
        "--format=csv,noheader,nounits",
        f"--id={device.index or 0}",
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    values = [value.strip() for value in done.stdout.strip().split(",")]
    return dict(zip(fields, values, strict=False))


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
