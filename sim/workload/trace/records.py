"""Reading records: JSON lines (Mooncake, AIPerf, generic), reports of load generators, Parquet."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from ....hwmodels.plainjson import plain_json
from ...fields import WorkloadError
from . import columns
from .columns import BadValueError, RawTrace
from .files import open_binary, open_text, refuse_bad_utf8
from .formats import RECORD_FORMATS, TABLE_FORMATS, Column, TraceFormat, Wanted, detect, locate_columns
from .reports import REPORTS, Record, report_rows


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
    if known.name in REPORTS:
        rows, dropped = report_rows(path, known, records, wanted.part)
        return _columnar(wanted, known, rows, lambda row: f"request {row}", dropped)
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
                record: object = plain_json(text)
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
        document: object = plain_json(text)
    except json.JSONDecodeError as error:
        at = f"line {error.lineno}, column {error.colno}"
        raise WorkloadError(f"{path}: {at}: not JSON: {error.msg}") from None
    except ValueError as error:
        raise WorkloadError(f"{path}: not JSON: {error}") from None
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
    return bool(record.get("error")) or bool(_at(record, ("metadata", "was_cancelled")))


def _columnar(
    wanted: Wanted,
    known: TraceFormat,
    rows: Sequence[Record],
    row_name: Callable[[int], str],
    dropped: dict[str, int],
) -> RawTrace:
    """Turn rows into arrays by our column names; the first row tells which columns there are."""
    path = wanted.path
    keys = set(_dotted(rows[0]))
    for row in rows:
        keys.update(row)  # an optional key may come later
    found = locate_columns(known, keys, f"{path}: {row_name(0)}", wanted)
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
