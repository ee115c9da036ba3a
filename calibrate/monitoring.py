"""Counters of monitoring tools beside the simulated ones: dcgmi, dcgm-exporter, nvidia-smi, torch profiler.

A GPU counts as utilised while any kernel runs, also one that waits for memory; the other three counters say more.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..hwmodels.plainjson import plain_json
from .errors import CalibrationError

COUNTERS = ("gpu_util", "sm_active", "tensor_active", "dram_active")
MEMORY = ("hbm_weights", "hbm_kv", "hbm_activations")
NAMES = {
    "GPUTL": "gpu_util", "SMACT": "sm_active", "TENSO": "tensor_active", "DRAMA": "dram_active",
    "DCGM_FI_DEV_GPU_UTIL": "gpu_util", "DCGM_FI_PROF_SM_ACTIVE": "sm_active",
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": "tensor_active", "DCGM_FI_PROF_DRAM_ACTIVE": "dram_active",
    "SM": "gpu_util", "UTILIZATION.GPU": "gpu_util",
}  # fmt: skip
"""Column or metric of a tool, upper case -> counter. nvidia-smi's *mem* is time with any access, not dram_active."""
PERCENT = {"GPUTL", "DCGM_FI_DEV_GPU_UTIL", "SM", "UTILIZATION.GPU"}
"""Those in percent; the others are fractions, unless one of them exceeds 1."""
GPU = ("GPU", "INDEX", "ENTITY", "IDX", "GPU_ID")
MISSING = {"", "-", "n/a", "[n/a]", "[not supported]", "nan", "none", "not supported"}
_METRIC = re.compile(r"^(DCGM_FI_\w+)\{([^}]*)\}\s+(\S+)")

Sample = tuple[str, str, float]
"""GPU, name of the column or metric, value as printed."""


@dataclass(frozen=True, slots=True)
class Monitored:
    """What a tool showed, as shares of time.

    Attributes
    ----------
    source : which tool's format it was
    gpus : for each GPU, the mean of each counter that it has [-]
    warnings : what was left out or is only near
    """

    source: str
    gpus: Mapping[str, Mapping[str, float]]
    warnings: tuple[str, ...] = ()

    def mean(self, counter: str) -> float | None:
        """Mean of a counter over the GPUs that have it [-]; None where none has."""
        values = [found[counter] for found in self.gpus.values() if counter in found]
        return sum(values) / len(values) if values else None


@dataclass(slots=True)
class _Series:
    """Samples by GPU and name, in order."""

    values: dict[str, dict[str, list[float]]] = field(default_factory=dict)

    def add(self, sample: Sample) -> None:
        gpu, name, value = sample
        self.values.setdefault(gpu, {}).setdefault(name, []).append(value)


def read_monitoring(path: Path) -> Monitored:
    """Read a file of one of the tools; the format is found by its content.

    Raises
    ------
    CalibrationError
        The file cannot be read, is none of the formats, or holds no value.
    """
    try:
        text = path.read_text(encoding="utf-8-sig", errors="replace")
    except OSError as error:
        raise CalibrationError(f"{path} cannot be read: {error.strerror}") from None
    if text.lstrip().startswith(("{", "[")):
        return _profile(text, path)
    if _METRIC.search(text) or any(_METRIC.match(line) for line in text.splitlines()):
        return _shares("dcgm-exporter", _exported(text, path), path)
    head = next((line for line in text.splitlines() if line.strip()), "")
    if head.startswith("#"):
        return _shares("dcgmi dmon" if "Entity" in head else "nvidia-smi dmon", _columns(text, path), path)
    if "," in head:
        return _shares("CSV", _rows(text, path), path)
    raise CalibrationError(
        f"{path}: not a file of a monitor; allowed: dcgmi dmon, dcgm-exporter text or CSV, nvidia-smi dmon, "
        "nvidia-smi --query-gpu=… --format=csv, a torch profiler's trace (JSON)"
    )


def _exported(text: str, path: Path) -> Iterator[Sample]:
    for at, line in enumerate(text.splitlines(), start=1):
        found = _METRIC.match(line.strip())
        if found and found[1] in NAMES:
            gpu = re.search(r'gpu="([^"]*)"', found[2])
            yield from _value(gpu[1] if gpu else "0", found[1], found[3], f"{path}:{at}")


def _columns(text: str, path: Path) -> Iterator[Sample]:
    """Yield the samples of a table in columns, whose header comes again every page; units stand below it."""
    header: list[str] = []
    for at, line in enumerate(text.splitlines(), start=1):
        words = line.replace("#", " # ", 1).split()
        if not words:
            continue
        if words[0] == "#":
            if any(word.upper() in NAMES for word in words[1:]):
                header = [word.upper() for word in words[1:]]
            continue
        if header and words[0] == "ID":
            continue
        if not header:
            raise CalibrationError(f"{path}:{at}: values before a header that names SMACT, GPUTL or sm")
        if words[0] == "GPU":  # dcgmi writes the entity as two words
            words = words[1:]
        if len(words) != len(header):
            raise CalibrationError(f"{path}:{at}: {len(words)} values under {len(header)} columns")
        row = dict(zip(header, words, strict=True))
        yield from _named(row, f"{path}:{at}")


def _rows(text: str, path: Path) -> Iterator[Sample]:
    lines = csv.reader(text.splitlines(), skipinitialspace=True)
    header = [re.sub(r"\s*\[.*\]$", "", name).strip().upper() for name in next(lines)]
    if not any(name in NAMES for name in header):
        raise CalibrationError(
            f"{path}: no column of a counter; allowed: utilization.gpu, {', '.join(n for n in NAMES if 'DCGM' in n)}"
        )
    for at, words in enumerate(lines, start=2):
        if not words or [re.sub(r"\s*\[.*\]$", "", word).strip().upper() for word in words] == header:
            continue
        if len(words) != len(header):
            raise CalibrationError(f"{path}:{at}: {len(words)} values under {len(header)} columns")
        yield from _named(dict(zip(header, words, strict=True)), f"{path}:{at}")


def _named(row: Mapping[str, str], where: str) -> Iterator[Sample]:
    gpu = next((row[name] for name in GPU if name in row), "0").replace("GPU", "").strip() or "0"
    for name, word in row.items():
        if name in NAMES:
            yield from _value(gpu, name, word, where)


def _value(gpu: str, name: str, word: str, where: str) -> Iterator[Sample]:
    text = word.replace("%", "").strip()
    if text.lower() in MISSING:
        return
    try:
        value = float(text)
    except ValueError:
        raise CalibrationError(f"{where}: {name} is {word!r}; allowed: a number or N/A") from None
    if not 0 <= value <= 100:
        raise CalibrationError(f"{where}: {name} is {value:g}; allowed: 0 to 100 %, or 0 to 1")
    yield gpu, name, value


def _shares(source: str, samples: Iterator[Sample], path: Path) -> Monitored:
    series = _Series()
    for sample in samples:
        series.add(sample)
    if not series.values:
        raise CalibrationError(f"{path}: no counter has a value: every one is N/A, or none is named")
    warnings: list[str] = []
    printed = [(n, v) for found in series.values.values() for n, values in found.items() for v in values]
    over = {name for name, value in printed if name not in PERCENT and value > 1}
    if over:
        warnings.append(f"{', '.join(sorted(over))} above 1: taken as percent")
    gpus = {gpu: _trimmed(gpu, found, bool(over), warnings) for gpu, found in series.values.items()}
    return Monitored(source, gpus, tuple(warnings))


def _trimmed(
    gpu: str, found: Mapping[str, Sequence[float]], percent: bool, warnings: list[str]
) -> dict[str, float]:
    """Return means without the idle samples before the first and after the last that shows work."""
    count = max(len(values) for values in found.values())
    whole = [values for values in found.values() if len(values) == count]
    busy = [i for i in range(count) if any(values[i] > 0 for values in whole)]
    first, last = (busy[0], busy[-1] + 1) if busy else (0, count)
    if last - first < count:
        warnings.append(
            f"GPU {gpu}: {first} idle samples at the start and {count - last} at the end left out"
        )
    means: dict[str, float] = {}
    for name, values in found.items():
        kept = values[first:last] if len(values) == count else values
        mean = sum(kept) / len(kept)
        means[NAMES[name]] = mean / 100 if percent or name in PERCENT else mean
    return means


def _profile(text: str, path: Path) -> Monitored:
    """Read a chrome trace of torch's profiler: kernels by device, between the first and the last of them."""
    try:
        data: Any = plain_json(text)
    except ValueError as error:
        raise CalibrationError(f"{path}: not JSON: {error}") from None
    events = data.get("traceEvents", []) if isinstance(data, dict) else data
    kernels: dict[str, list[tuple[float, float, float]]] = {}
    for event in events if isinstance(events, list) else []:
        if isinstance(event, dict) and event.get("cat") == "kernel" and "dur" in event and "ts" in event:
            args = event.get("args") or {}
            start, blocks = float(event["ts"]), float(args.get("blocks per SM", 1.0))
            device = str(args.get("device", event.get("pid", 0)))
            kernels.setdefault(device, []).append((start, start + float(event["dur"]), min(blocks, 1.0)))
    if not kernels:
        raise CalibrationError(f"{path}: no kernel in the trace; profile with ProfilerActivity.CUDA")
    warnings = (
        "torch profiler: time between the first and the last kernel; sm_active from blocks per SM, an upper bound",
    )
    return Monitored("torch profiler", {gpu: _of_kernels(rows) for gpu, rows in kernels.items()}, warnings)


def _of_kernels(rows: list[tuple[float, float, float]]) -> dict[str, float]:
    """Return the share of time with a kernel, and with units busy; kernels that overlap count once."""
    begin, span = min(r[0] for r in rows), max(r[1] for r in rows) - min(r[0] for r in rows)
    busy = active = 0.0
    reached = begin
    for start, end, share in sorted(rows):
        fresh = max(end - max(start, reached), 0.0)
        busy, active, reached = busy + fresh, active + share * fresh, max(reached, end)
    return {"gpu_util": busy / span, "sm_active": active / span} if span > 0 else {"gpu_util": 1.0}


@dataclass(frozen=True, slots=True)
class Beside:
    """Measured counters beside those of a simulated run.

    Attributes
    ----------
    measured : what the tool showed
    simulated : the run's counters [-]; None where the run does not say
    memory_share : share of the time with a kernel in which the run waits for memory [-]; None if unknown
    """

    measured: Monitored
    simulated: Mapping[str, float | None]
    memory_share: float | None

    @property
    def sentence(self) -> str:
        """What utilisation hides, in one line."""
        shown = self.measured.mean("gpu_util")
        if shown is None or self.memory_share is None:
            return ""
        return (
            f"your GPU shows {100 * shown:.0f} % utilised and waits for memory {100 * self.memory_share:.0f} % of that "
            "(the second figure is simulated)"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; all are fractions."""
        return {
            "source": self.measured.source,
            "counters": {
                name: {"measured": self.measured.mean(name), "simulated": self.simulated.get(name)}
                for name in COUNTERS
            },
            "gpus": {gpu: dict(found) for gpu, found in self.measured.gpus.items()},
            "memory_share_of_utilised": self.memory_share,
            "sentence": self.sentence or None,
            "warnings": list(self.measured.warnings),
        }


def beside(measured: Monitored, summary: Mapping[str, Any]) -> Beside:
    """Put measured counters beside those of a run's summary."""
    used, shares = summary["utilization"], summary["time_share"]
    simulated = {name: used.get(name) for name in COUNTERS}
    waits = [shares.get(name) for name in MEMORY]
    util = simulated["gpu_util"]
    known = util and all(share is not None for share in waits)
    return Beside(measured, simulated, min(sum(waits) / util, 1.0) if known and util else None)
