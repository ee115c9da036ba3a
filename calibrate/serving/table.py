"""Tables of served runs: read as text cells, told apart by their header, with the parts that a split gives them."""

from __future__ import annotations

import csv
import gzip
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..errors import CalibrationError

Kind = Literal["runs", "points"]
PARTS: tuple[str, ...] = ("fit", "judge", "replicate", "exclude")
MARKS: Mapping[Kind, tuple[str, ...]] = {
    "runs": ("run_id", "gpu", "model", "engine", "isl_mean", "osl_mean"),
    "points": ("run_id", "gpu", "model", "engine", "isl", "osl", "concurrency"),
}
"""Columns by which the two schemas are known."""


class RowError(CalibrationError):
    """A row that cannot be turned into a run; its text is the reason for which it is skipped."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row, its cells as text.

    Attributes
    ----------
    cells : column -> text; empty where unknown
    line : line of the file
    """

    cells: Mapping[str, str]
    line: int

    def text(self, column: str) -> str:
        """Return a cell without blanks around it; empty where unknown."""
        return (self.cells.get(column) or "").strip()

    def number(self, column: str) -> float | None:
        """Return a cell as a number, None where it is empty.

        Raises
        ------
        RowError : not a finite number
        """
        text = self.text(column)
        if not text or text.lower() in ("nan", "none", "null"):
            return None
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise RowError(f"{column} is {text!r}, not a number")
        return value

    def count(self, column: str, default: int = 1) -> int:
        """Return a cell as a whole number of things, ``default`` where it is empty or 0.

        Raises
        ------
        RowError : negative, or not a whole number
        """
        value = self.number(column)
        if value is None or value == 0:
            return default
        if value < 0 or value != int(value):
            raise RowError(f"{column} is {value:g}, not a count")
        return int(value)

    def positive(self, column: str) -> float:
        """Return a cell that must be there and above 0.

        Raises
        ------
        RowError : empty, not a number, or not above 0
        """
        value = self.number(column)
        if value is None or value <= 0:
            raise RowError(f"{column} is {self.text(column) or 'empty'}; needs a number above 0")
        return value


@dataclass(frozen=True, slots=True)
class ServedTable:
    """A table of served runs.

    Attributes
    ----------
    path : the file
    kind : which schema it has
    rows : its rows
    """

    path: Path
    kind: Kind
    rows: tuple[Row, ...]


def read_served(path: Path) -> ServedTable:
    """Read a CSV file, compressed with gzip or not, of either schema.

    Raises
    ------
    CalibrationError : not there, not text, no rows, or neither schema
    """
    lines = _csv(path)
    if not lines:
        raise CalibrationError(f"{path}: no rows, no runs to validate against")
    header = set(lines[0].cells)
    for kind, marks in MARKS.items():
        if header.issuperset(marks):
            return ServedTable(path, kind, tuple(lines))
    short = min(([mark for mark in marks if mark not in header] for marks in MARKS.values()), key=len)
    raise CalibrationError(
        f"{path}: no table of served runs; missing: {', '.join(short)} (runs have {', '.join(MARKS['runs'])}; "
        f"points {', '.join(MARKS['points'])})"
    )


def read_parts(path: Path, table: Path) -> dict[str, tuple[str, str]]:
    """Read which part each run of a table is in: run id -> (part, note).

    Parameters
    ----------
    path : columns ``table``, ``run_id``, ``part``, and ``note`` if there are any
    table : the table of runs, whose name without endings is what ``table`` holds

    Raises
    ------
    CalibrationError : not there, or without these columns
    """
    rows = _csv(path)
    for column in ("run_id", "part"):
        if rows and column not in rows[0].cells:
            raise CalibrationError(f"{path}: no column {column!r}; needs run_id and part")
    name = table.name.partition(".")[0]
    return {
        row.text("run_id"): (row.text("part"), row.text("note"))
        for row in rows
        if row.text("table") in (name, "")
    }


def _csv(path: Path) -> list[Row]:
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8-sig")
    except FileNotFoundError:
        raise CalibrationError(f"{path}: not found") from None
    except (OSError, UnicodeDecodeError, EOFError) as error:
        raise CalibrationError(f"{path}: cannot be read as CSV: {error}") from None
    reader = csv.DictReader(text.splitlines(), restval="")
    try:
        return [
            Row({key: value for key, value in cells.items() if key is not None}, reader.line_num)
            for cells in reader
        ]
    except csv.Error as error:
        raise CalibrationError(f"{path}: line {reader.line_num}: {error}") from None
