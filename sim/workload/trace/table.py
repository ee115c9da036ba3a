"""Reading CSV: in blocks of rows, each turned into columns at once; one that fails is searched for why.

Text values never live longer than their block, so a million rows need memory for their arrays only.
"""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ...fields import WorkloadError
from . import columns
from .columns import BadValueError, RawTrace
from .files import open_binary, text_lines
from .formats import TABLE_FORMATS, Column, Wanted, detect, locate_columns

_BLOCK_ROWS = 1 << 15


def read_table(wanted: Wanted) -> RawTrace:
    """Read a CSV file of any known format.

    Raises
    ------
    WorkloadError : unknown header, missing column, a row of another length, a value of another type
    """
    path = wanted.path
    with open_binary(path) as file:
        rows = _rows(path, file)
        header = [name.strip() for name in next(rows)[1]]
        _refuse_repeated(path, header)
        where = f"{path}: line 1"
        known = detect(header, TABLE_FORMATS, wanted.format, where)
        found = locate_columns(known, header, where, wanted)
        blocks = _read_blocks(path, rows, header, found)
        arrays = {name: np.concatenate(parts) for name, parts in blocks.items()} if blocks else {}
    if not arrays:
        raise WorkloadError(f"{path}: a header but no rows, no requests to simulate")
    return RawTrace(path, known, found, arrays, lambda row: f"line {_line_of(path, row)}")


def _read_blocks(
    path: str, rows: Iterator[tuple[int, list[str]]], header: list[str], found: dict[str, Column]
) -> dict[str, list[NDArray[np.generic]]]:
    """Read all rows, block by block, into lists of arrays by our column name."""
    at = {ours: header.index(column.name) for ours, column in found.items()}
    parts: dict[str, list[NDArray[np.generic]]] = {}
    while block := list(itertools.islice(rows, _BLOCK_ROWS)):
        for line, row in block:
            if len(row) != len(header):
                raise WorkloadError(
                    f"{path}: line {line}: {len(row)} values, but the header has {len(header)} columns"
                )
        values = list(zip(*(row for _, row in block), strict=True))
        for ours, column in found.items():
            try:
                if ours == "hash_ids":
                    ids, counts = columns.hash_ids(values[at[ours]])
                    parts.setdefault("hash_ids", []).append(ids)
                    parts.setdefault("hash_counts", []).append(counts)
                else:
                    parts.setdefault(ours, []).append(columns.to_array(ours, column, values[at[ours]]))
            except BadValueError as bad:
                line = block[bad.row][0]
                raise WorkloadError(f"{path}: line {line}, column {column.name!r}: {bad.text}") from None
    return parts


def _rows(path: str, file: object) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, values) of each row that is not blank, the header first."""
    lines = text_lines(path, file)  # pyright: ignore[reportArgumentType]
    first = next(lines)
    delimiter = next((mark for mark in ",\t;" if mark in first), ",")
    reader = csv.reader(itertools.chain([first], lines), delimiter=delimiter)
    try:
        for row in reader:
            if row and (len(row) > 1 or row[0].strip()):
                yield reader.line_num, row
    except csv.Error as error:
        raise WorkloadError(f"{path}: line {reader.line_num}: {error}") from None


def _line_of(path: str, wanted: int) -> int:
    """Return the line on which data row ``wanted`` (from 0) ends."""
    with open_binary(path) as file:
        for row, (line, _) in enumerate(_rows(path, file), start=-1):
            if row == wanted:
                return line
    return wanted + 2


def _refuse_repeated(path: str, header: list[str]) -> None:
    for name in header:
        if name and header.count(name) > 1:
            raise WorkloadError(f"{path}: line 1: column {name!r} appears {header.count(name)} times")
