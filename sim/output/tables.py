"""The tables of a run as Arrow: requests, steps, KV pool over time; units in the fields' metadata."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..books.record import CAUSES, RunRecord
from ..engine.request import Status
from ..metrics.figures import NS_PER_S
from ..metrics.latency import completed, itl_by_position

UNIT_BY_SUFFIX: Mapping[str, str] = {
    "_ns": "ns", "_s": "s", "_tokens": "tokens", "_blocks": "blocks", "_bytes": "B", "_flop": "FLOP",
}  # fmt: skip
EVENT_COLUMNS: tuple[str, ...] = ("arrival_ns", "first_scheduled_ns", "first_token_ns", "last_token_ns")


def requests_table(record: RunRecord) -> Any:
    """Return one row a request as a ``pyarrow.Table``.

    Times are whole nanoseconds as the engine saw them, and beside them the metrics made of them in seconds
    (null where undefined). With ``arrival_s``, ``input_tokens`` and ``output_tokens`` it is a workload, too.
    """
    source = record.requests
    columns: dict[str, Any] = {"index": source["index"], "arrival_s": source["arrival_ns"] / NS_PER_S}
    columns |= {name: _nullable(source[name], source[name] < 0) for name in EVENT_COLUMNS}
    for name in ("input_tokens", "output_tokens", "num_cached_tokens", "num_preemptions", "priority"):
        columns[name] = source[name]
    columns["session"] = _nullable(source["session"], source["session"] < 0)
    columns["tenant"] = _nullable(source["tenant"], source["tenant"] < 0)
    columns["status"] = _names(source["status"], [status.name.lower() for status in Status])
    columns["slo_class"] = _names(source["slo_class"], list(record.slo_classes))
    columns["reject_reason"] = _names(source["reject_reason"], list(record.reject_reasons))
    if "replica" in source:
        columns["replica"] = source["replica"]
    for name in ("prefill_replica", "kv_asked_ns", "kv_sent_ns", "kv_arrived_ns"):
        if name in source:
            columns[name] = _nullable(source[name], source[name] < 0)
    return _table(columns | _durations(record) | _causes(record))


def _durations(record: RunRecord) -> dict[str, Any]:
    """Return queue, TTFT, TPOT and E2E of each request [s], null where undefined."""
    source, done = record.requests, completed(record)
    several = done & (source["output_tokens"] > 1)
    gaps = np.maximum(source["output_tokens"] - 1, 1)
    decode_s = (source["last_token_ns"] - source["first_token_ns"]) / NS_PER_S
    since_arrival = {"queue_s": "first_scheduled_ns", "ttft_s": "first_token_ns", "e2e_s": "last_token_ns"}
    found = {
        name: _nullable((source[until] - source["arrival_ns"]) / NS_PER_S, source[until] < 0)
        for name, until in since_arrival.items()
    }
    return found | {"tpot_s": _nullable(decode_s / gaps, ~several)}


def _causes(record: RunRecord) -> dict[str, Any]:
    """Return where each request's TTFT and decode time went, a column by phase and cause [ns]."""
    if record.per_request_causes is None:
        return {}
    return {
        f"{phase}_{cause}_ns": by_cause[:, i]
        for phase, by_cause in record.per_request_causes.items()
        for i, cause in enumerate(CAUSES)
    }


def position_table(record: RunRecord) -> Any | None:
    """Return the mean gap before each output token by position, None where it was not kept."""
    found = itl_by_position(record)
    if found is None or record.itl_by_position is None:
        return None
    positions, mean_s = found
    return _table({"position": positions, "itl_s": mean_s, "emissions": record.itl_by_position[1][positions]})


def all_tables(record: RunRecord) -> dict[str, Any]:
    """Return file name -> table, for the tables this run has."""
    tables: dict[str, Any | None] = {
        "requests.parquet": requests_table(record),
        "steps.parquet": None if record.steps is None else _table(record.steps),
        "kv.parquet": None if record.kv_timeline is None else _table(record.kv_timeline),
        "itl_by_position.parquet": position_table(record),
    }
    return {name: table for name, table in tables.items() if table is not None}


def write_parquet(table: Any, path: Path) -> None:
    """Write a table as Parquet."""
    importlib.import_module("pyarrow.parquet").write_table(table, path, compression="zstd")


def unit(column: str) -> str | None:
    """Return the unit that a column's name ends with, None where it has none.

    >>> unit("arrival_ns"), unit("used_blocks"), unit("status")
    ('ns', 'blocks', None)
    """
    return next((unit for suffix, unit in UNIT_BY_SUFFIX.items() if column.endswith(suffix)), None)


def _nullable(values: Any, missing: Any) -> Any:
    return _pyarrow().array(values, mask=np.asarray(missing))


def _names(codes: Any, names: list[str]) -> Any:
    """Return codes as a dictionary column of names, null where the code is negative."""
    pa = _pyarrow()
    indices = pa.array(np.asarray(codes, dtype=np.int32), mask=np.asarray(codes) < 0)
    return pa.DictionaryArray.from_arrays(indices, pa.array(names, type=pa.string()))


def _table(columns: Mapping[str, Any]) -> Any:
    pa = _pyarrow()
    arrays = [values if hasattr(values, "type") else pa.array(values) for values in columns.values()]
    fields = [
        pa.field(name, array.type, metadata={"unit": measure} if (measure := unit(name)) else None)
        for name, array in zip(columns, arrays, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def _pyarrow() -> Any:
    """Import pyarrow when it is first needed: it is slow to load, and most runs write no Parquet."""
    return importlib.import_module("pyarrow")
