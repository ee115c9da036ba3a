"""Reading records: JSON lines (Mooncake, AIPerf, generic), JSON reports of load generators, and Parquet."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from ...fields import WorkloadError
from . import columns
from .columns import BadValueError, RawTrace
from .files import open_binary, open_text, refuse_bad_utf8
from .formats import RECORD_FORMATS, TABLE_FORMATS, Column, TraceFormat, Wanted, detect, locate_columns

Record = Mapping[str, Any]


def read_records(wanted: Wanted) -> RawTrace:
    """Read JSON lines or a JSON report of any known format.

    Raises
    ------
    WorkloadError : not JSON, unknown keys, a missing or unreadable value
    """
    path = wanted.path
    lines, records = _load(path)
    if not records:
        raise WorkloadError(f"{path}: no records, no requests to simulate")
    known = detect(records[0].keys(), RECORD_FORMATS, wanted.format, f"{path}: line {lines[0]}")
    if known.name in ("guidellm", "vllm_bench"):
        run = _pick_run(path, known, records, wanted.part)
        trace_rows, dropped = _guidellm_rows(run) if known.name == "guidellm" else _vllm_rows(path, run)
        if not trace_rows:
            raise WorkloadError(f"{path}: no completed requests in this {known.name} report")
        return _columnar(wanted, known, trace_rows, lambda row: f"request {row}", dropped)
    good = [row for row, record in enumerate(records) if not _failed(known, record)]
    dropped = {known.failures: len(records) - len(good)} if len(good) < len(records) else {}
    if not good:
        raise WorkloadError(f"{path}: every one of its {len(records)} requests failed")
    kept = [records[row] for row in good]
    return _columnar(wanted, known, kept, lambda row: f"line {lines[good[row]]}", dropped)


def read_parquet(wanted: Wanted) -> RawTrace:
    """Read a Parquet file with the columns of any table format.

    Raises
    ------
    WorkloadError : not Parquet, missing column, a value of another type
    """
    pyarrow: Any = import_module("pyarrow")  # untyped, and imported only where a file needs it
    parquet: Any = import_module("pyarrow.parquet")
    path = wanted.path
    try:
        names: list[str] = list(parquet.read_schema(path).names)
        known = detect(names, TABLE_FORMATS, wanted.format, path)
        found = locate_columns(known, names, path, wanted)
        table = parquet.read_table(path, columns=[column.name for column in found.values()])
    except (pyarrow.ArrowException, OSError) as error:
        raise WorkloadError(f"{path}: not a readable Parquet file: {str(error).splitlines()[0]}") from None
    if not len(table):
        raise WorkloadError(f"{path}: no rows, no requests to simulate")
    arrays = _arrays(
        path, found, lambda ours: _parquet_values(table[found[ours].name]), lambda row: f"row {row}"
    )
    return RawTrace(path, known, found, arrays, lambda row: f"row {row}")


def _parquet_values(column: Any) -> Sequence[object]:
    if str(column.type).startswith("timestamp"):
        return [str(stamp) for stamp in column.cast("timestamp[ns]").to_numpy()]
    return cast("Sequence[object]", column.to_pylist())


def _load(path: str) -> tuple[list[int], list[Record]]:
    """Return the line numbers and the records of a file of JSON lines, or of one JSON document."""
    lines: list[int] = []
    records: list[Record] = []
    with _utf8(path) as file:
        for number, text in enumerate(file, start=1):
            if not text.strip():
                continue
            try:
                record: object = json.loads(text)
            except ValueError as error:
                if number == 1:
                    return _document(path)
                raise WorkloadError(f"{path}: line {number}: not JSON: {error}") from None
            if isinstance(record, list) and number == 1:
                return _document(path)
            if not isinstance(record, dict):
                raise WorkloadError(f"{path}: line {number}: {text.strip()[:40]!r} is not a JSON object")
            lines.append(number)
            records.append(cast("Record", record))
    return lines, records


def _document(path: str) -> tuple[list[int], list[Record]]:
    """Read a file that is one JSON document over many lines."""
    with _utf8(path) as file:
        text = file.read()
    try:
        document: object = json.loads(text)
    except json.JSONDecodeError as error:
        at = f"line {error.lineno}, column {error.colno}"
        raise WorkloadError(f"{path}: {at}: not JSON: {error.msg}") from None
    items = cast("list[object]", document) if isinstance(document, list) else [document]
    for row, item in enumerate(items):
        if not isinstance(item, dict):
            raise WorkloadError(f"{path}: item {row}: {str(item)[:40]!r} is not a JSON object")
    return [1] * len(items), cast("list[Record]", items)


@contextmanager
def _utf8(path: str) -> Generator[IO[str]]:
    try:
        with open_binary(path) as binary, open_text(binary) as text:
            yield text
    except UnicodeDecodeError:
        refuse_bad_utf8(path)
        raise


def _failed(known: TraceFormat, record: Record) -> bool:
    if known.name != "aiperf":
        return False
    metadata: Record = record.get("metadata") or {}
    return bool(record.get("error")) or bool(metadata.get("was_cancelled"))


def _pick_run(path: str, known: TraceFormat, records: Sequence[Record], part: int | None) -> Record:
    runs: list[Record] = records[0]["benchmarks"] if known.name == "guidellm" else list(records)
    if part is None and len(runs) != 1:
        raise WorkloadError(
            f"{path}: holds {len(runs)} runs; choose one with trace.part: 0 to {len(runs) - 1}"
        )
    if part is not None and part >= len(runs):
        raise WorkloadError(f"{path}: trace.part is {part}, but the runs are 0 to {len(runs) - 1}")
    return runs[part or 0]


def _guidellm_rows(run: Record) -> tuple[list[Record], dict[str, int]]:
    requests: Record = run.get("requests") or {}
    failed = {kind: len(requests.get(kind) or ()) for kind in ("incomplete", "errored")}
    return list(requests.get("successful") or ()), {kind: count for kind, count in failed.items() if count}


def _vllm_rows(path: str, run: Record) -> tuple[list[Record], dict[str, int]]:
    """Turn the parallel lists of ``vllm bench serve --save-detailed`` into rows, failed requests left out."""
    keys = [key for key in ("start_times", "input_lens", "output_lens", "ttfts") if run.get(key)]
    if "input_lens" not in keys:
        raise WorkloadError(f"{path}: no per-request lists; run vllm bench serve with --save-detailed")
    lengths = {key: len(run[key]) for key in keys}
    if len(set(lengths.values())) > 1:
        raise WorkloadError(f"{path}: lists of different lengths: {lengths}")
    errors: Sequence[object] = run.get("errors") or ()
    rows: list[Record] = []
    for values in zip(*(run[key] for key in keys), range(lengths["input_lens"]), strict=True):
        row = dict(zip(keys, values, strict=False))
        gaps: Sequence[float] = run["itls"][values[-1]] if run.get("itls") else ()
        row["e2els"] = row["ttfts"] + sum(gaps) if "ttfts" in row and "itls" in run else None
        if not (values[-1] < len(errors) and errors[values[-1]]):
            rows.append({key: value for key, value in row.items() if value is not None})
    failed = lengths["input_lens"] - len(rows)
    return rows, {"an error": failed} if failed else {}


def _columnar(
    wanted: Wanted,
    known: TraceFormat,
    rows: Sequence[Record],
    row_name: Callable[[int], str],
    dropped: dict[str, int],
) -> RawTrace:
    """Turn rows into arrays by our column names; the first row tells which columns there are."""
    path = wanted.path
    found = locate_columns(known, set(_dotted(rows[0])), f"{path}: {row_name(0)}", wanted)
    paths = {ours: column.name.split(".") for ours, column in found.items()}
    arrays = _arrays(path, found, lambda ours: [_at(row, paths[ours]) for row in rows], row_name)
    return RawTrace(path, known, found, arrays, row_name, dropped)


def _arrays(
    path: str,
    found: Mapping[str, Column],
    values_of: Callable[[str], Sequence[object]],
    row_name: Callable[[int], str],
) -> dict[str, NDArray[np.generic]]:
    arrays: dict[str, NDArray[np.generic]] = {}
    for ours, column in found.items():
        try:
            if ours == "hash_ids":
                arrays["hash_ids"], arrays["hash_counts"] = columns.hash_ids(values_of(ours))
            else:
                arrays[ours] = columns.to_array(ours, column, values_of(ours))
        except BadValueError as bad:
            raise WorkloadError(f"{path}: {row_name(bad.row)}, column {column.name!r}: {bad.text}") from None
    return arrays


def _dotted(record: Record, prefix: str = "") -> Iterator[str]:
    for key, value in record.items():
        yield prefix + key
        if isinstance(value, Mapping):
            yield from _dotted(cast("Record", value), f"{prefix}{key}.")


def _at(record: Record, path: Sequence[str]) -> object:
    """Return the value at a dotted path, None where a key is missing."""
    inner: object = record
    for key in path:
        if not isinstance(inner, Mapping):
            return None
        inner = cast("Mapping[str, object]", inner).get(key)
    return inner
