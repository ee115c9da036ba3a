"""Reading CSV: in blocks of rows, each turned into columns at once; one that fails is searched for why.

Text values never live longer than their block, so a million rows need memory for their arrays only. Line
numbers are found by reading the file again, and only where there is something to complain about.
"""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterator
from typing import IO, Protocol

import numpy as np
from numpy.typing import NDArray

from ...fields import WorkloadError
from . import columns
from .columns import BadValueError, RawTrace
from .files import open_binary, open_text, refuse_bad_utf8
from .formats import TABLE_FORMATS, Column, Wanted, detect, locate_columns

_BLOCK_ROWS = 1 << 14
Block = list[list[str]]


class _Rows(Protocol):
    """A CSV reader."""

    @property
    def line_num(self) -> int: ...
    def __iter__(self) -> Iterator[list[str]]: ...
    def __next__(self) -> list[str]: ...


def read_table(wanted: Wanted) -> RawTrace:
    """Read a CSV file of any known format.

    Raises
    ------
    WorkloadError : unknown header, missing column, a row of another length, a value of another type
    """
    path = wanted.path
    try:
        with open_binary(path) as binary, open_text(binary) as text:
            blocks = _blocks(path, text)
            first = next(blocks)
            if not first:
                raise WorkloadError(f"{path}: blank lines alone, no requests to simulate")
            header = [name.strip() for name in first[0]]
            known, found = _columns_of(wanted, header)
            parts = _read_blocks(path, blocks, header, found)
    except UnicodeDecodeError:
        refuse_bad_utf8(path)
        raise
    if not parts:
        raise WorkloadError(f"{path}: a header but no rows, no requests to simulate")
    arrays = {name: np.concatenate(parts.pop(name)) for name in list(parts)}
    return RawTrace(path, known, found, arrays, lambda row: f"line {_line_of(path, row)}")


def _columns_of(wanted: Wanted, header: list[str]) -> tuple[columns.TraceFormat, dict[str, Column]]:
    where = f"{wanted.path}: line 1"
    for name in header:
        if name and header.count(name) > 1:
            raise WorkloadError(f"{where}: column {name!r} appears {header.count(name)} times")
    known = detect(header, TABLE_FORMATS, wanted.format, where)
    return known, locate_columns(known, header, where, wanted)


def _read_blocks(
    path: str, blocks: Iterator[Block], header: list[str], found: dict[str, Column]
) -> dict[str, list[NDArray[np.generic]]]:
    """Read all rows, block by block, into lists of arrays by our column name."""
    at = {ours: header.index(column.name) for ours, column in found.items()}
    parts: dict[str, list[NDArray[np.generic]]] = {}
    done = 0
    for block in blocks:
        for row in itertools.compress(range(len(block)), (len(values) != len(header) for values in block)):
            have = f"{len(block[row])} values, but the header has {len(header)} columns"
            raise WorkloadError(f"{path}: line {_line_of(path, done + row)}: {have}")
        values = list(zip(*block, strict=True))
        for ours, column in found.items():
            try:
                if ours == "hash_ids":
                    ids, counts = columns.hash_ids(values[at[ours]])
                    parts.setdefault("hash_ids", []).append(ids)
                    parts.setdefault("hash_counts", []).append(counts)
                else:
                    parts.setdefault(ours, []).append(columns.to_array(ours, column, values[at[ours]]))
            except BadValueError as bad:
                line = _line_of(path, done + bad.row)
                raise WorkloadError(f"{path}: line {line}, column {column.name!r}: {bad.text}") from None
        done += len(block)
    return parts


def _blocks(path: str, text: IO[str]) -> Iterator[Block]:
    """Yield the header alone, then blocks of rows that are not blank."""
    reader = _reader(text)
    try:
        yield list(itertools.islice((row for row in reader if _filled(row)), 1))
        while block := list(itertools.islice(reader, _BLOCK_ROWS)):
            filled = [row for row in block if _filled(row)]
            if filled:
                yield filled
    except csv.Error as error:
        raise WorkloadError(f"{path}: line {reader.line_num}: {error}") from None


def _reader(text: IO[str]) -> _Rows:
    """Return a CSV reader; the delimiter is tab or semicolon where the header has no comma."""
    first = text.readline()
    delimiter = next((mark for mark in ",\t;" if mark in first), ",")
    return csv.reader(itertools.chain([first], text), delimiter=delimiter)


def _filled(row: list[str]) -> bool:
    return len(row) > 1 or (len(row) == 1 and bool(row[0].strip()))


def _line_of(path: str, wanted: int) -> int:
    """Return the line on which data row ``wanted`` (from 0, blank rows not counted) ends."""
    with open_binary(path) as binary, open_text(binary) as text:
        reader = _reader(text)
        lines = (reader.line_num for row in reader if _filled(row))
        return next(itertools.islice(lines, wanted + 1, None), wanted + 2)
