"""The folder of a measuring run: a plan, an environment, timings appended as they come, and a table of them.

A line is on disk before the next kernel is timed, and everything else is written beside its place and then renamed,
so that a run killed at any moment loses at most the timing it was making.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ..kernels.results import Overlap
from .design import Plan, plan_from
from .errors import CalibrationError
from .table import COUNTS, NAMES, SCHEMA, TIMES, KernelTable

PLAN, ENVIRONMENT, POINTS, TABLE = "plan.json", "environment.json", "points.jsonl", "table.parquet"
EXTRA_NAMES: Final = ("role", "clock", "id")
EXTRA_NUMBERS: Final = ("spread", "error", "flop", "moved_bytes", "at_s")
"""Columns of the run's table beyond the long schema."""

_RATES: Final = {
    **dict.fromkeys(("bfloat16", "int8_wo", "int4_wo"), "gemm"),
    "float32": "gemm/float32",
    "int8": "gemm/int8",
}
"""Under which name a machine keeps the rate of a dtype."""
Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """What a run timed.

    Attributes
    ----------
    fit, held_out, repeats : tables in the long schema: points to fit, points that no fit may see, and second
        timings of points of ``fit``
    environment : device, versions, clocks, lanes that were skipped
    records : all of it, as appended
    overlap : a kernel and a copy, alone and at once; None where it was not timed
    """

    fit: KernelTable
    held_out: KernelTable
    repeats: KernelTable
    environment: Mapping[str, Any]
    records: tuple[Record, ...]
    overlap: Overlap | None = None


def read_run(folder: str | os.PathLike[str]) -> MeasuredRun:
    """Read the folder of a run, finished or not.

    Raises
    ------
    CalibrationError : not the folder of a run
    """
    folder = Path(folder)
    if not (folder / POINTS).is_file():
        raise CalibrationError(f"{str(folder)!r} is no measuring run: it has no {POINTS}")
    environment = json.loads((folder / ENVIRONMENT).read_text()) if (folder / ENVIRONMENT).is_file() else {}
    records = read_records(folder)
    timed = [record for record in records if "latency_us" in record]

    def part(role: str) -> KernelTable:
        rows = [row_of(record) for record in timed if record["role"] == role]
        columns = {name: [_filled(name, row.get(name)) for row in rows] for name in SCHEMA}
        return KernelTable.of(columns, str(folder))

    environment = with_seen_rates(environment, timed)
    both = next((record["overlap"] for record in records if record.get("overlap")), None)
    return MeasuredRun(
        part("fit"),
        part("held_out"),
        part("repeat"),
        environment,
        tuple(records),
        Overlap(**both) if both else None,
    )


def with_seen_rates(environment: Mapping[str, Any], timed: Iterable[Record]) -> dict[str, Any]:
    """Return a CPU's environment with the highest rates that the run saw, for want of a datasheet.

    A peak is the highest rate of any kernel of a dtype, the bandwidth that of any kernel whose data no cache holds.
    """
    machine = environment.get("machine", {})
    if machine.get("kind") != "cpu":
        return dict(environment)
    rates, bandwidth = dict(machine["flop_rate"]), machine["bandwidth"]
    for record in timed:
        seconds = record["latency_us"] * 1e-6
        name = _RATES.get(record["shape"]["dtype"], "")
        if name:
            rates[name] = max(rates.get(name, 0.0), record["flop"] / seconds)
        if record["moved_bytes"] > machine["cache_bytes"]:
            bandwidth = max(bandwidth, record["moved_bytes"] / seconds)
    return {**environment, "machine": {**machine, "flop_rate": rates, "bandwidth": bandwidth}}


def read_plan(folder: Path) -> Plan | None:
    """Return the plan of a run, or None where there is none yet."""
    path = folder / PLAN
    return plan_from(json.loads(path.read_text())) if path.is_file() else None


def read_records(folder: Path) -> list[Record]:
    """Return the lines appended so far; one that was cut short by a kill is left out."""
    path = folder / POINTS
    if not path.is_file():
        return []
    whole, _, _ = path.read_bytes().rpartition(b"\n")
    return [json.loads(line) for line in whole.splitlines() if line.strip()]


def mend(folder: Path) -> None:
    """Cut a last line that a kill left without its end, so that the next one begins on a line of its own."""
    path = folder / POINTS
    if not path.is_file():
        return
    data = path.read_bytes()
    if data and not data.endswith(b"\n"):
        with path.open("r+b") as file:
            file.truncate(data.rfind(b"\n") + 1)


def append(folder: Path, record: Record) -> None:
    """Add one line and see it onto the disk."""
    with (folder / POINTS).open("ab") as file:
        file.write(json.dumps(record).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write a file as a whole or not at all."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(json.dumps(data, indent=1))
    os.replace(beside, path)


def write_run_table(folder: Path) -> int:
    """Write the run's table, role and check beside the long schema, as a whole or not at all; return its rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [row_of(record) for record in read_records(folder) if "latency_us" in record]
    kinds = {name: pa.string() for name in (*NAMES, *EXTRA_NAMES)}
    kinds |= {name: pa.int64() for name in COUNTS} | {name: pa.float64() for name in (*TIMES, *EXTRA_NUMBERS)}
    schema = pa.schema([(name, kinds[name]) for name in (*SCHEMA, *EXTRA_NAMES, *EXTRA_NUMBERS)])
    beside = folder / f".{TABLE}.{os.getpid()}"
    pq.write_table(pa.Table.from_pylist([dict(row) for row in rows], schema=schema), beside)
    os.replace(beside, folder / TABLE)
    return len(rows)


def row_of(record: Record) -> dict[str, Any]:
    """Return a timing as a row of the table: its shape under the long schema's names, and the rest."""
    shape = dict(record["shape"])
    row = {name: record[name] for name in (*SCHEMA, *EXTRA_NAMES, *EXTRA_NUMBERS) if name in record}
    return {"kernel_source": shape.pop("kernel"), **shape, **row}


def done(records: Iterable[Record]) -> set[str]:
    """Return the ids that need no more timing: timed, refused by the device, or wrong."""
    return {record["id"] for record in records if "id" in record}


def _filled(name: str, value: Any) -> Any:
    if value is not None:
        return value
    return "" if name in NAMES else -1 if name in COUNTS else float("nan")
