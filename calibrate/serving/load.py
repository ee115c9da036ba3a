"""From files to runs to play: every row becomes one, or is skipped with its reason."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from ...hwmodels.catalog import key
from ..errors import CalibrationError
from .points import served_point
from .run import Label, ServedRun, Skipped
from .runs import label_of, served_run
from .table import PARTS, Row, ServedTable, read_parts, read_served

SPLITS = "splits.csv"
"""File beside a table that says which part its runs are in."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Which rows of a table are wanted; empty wants all.

    Attributes
    ----------
    parts, gpus, models : names, in any spelling
    limit : only the first so many rows
    """

    parts: Collection[str] = ()
    gpus: Collection[str] = ()
    models: Collection[str] = ()
    limit: int | None = None

    def wants(self, label: Label) -> bool:
        """Return whether a row of that label is wanted."""
        pairs = ((self.gpus, label.gpu), (self.models, label.model))
        named = all(not asked or any(key(name) in key(have) for name in asked) for asked, have in pairs)
        return named and (not self.parts or label.part in self.parts)


def load_runs(
    path: Path, choice: Choice | None = None, splits: Path | None = None
) -> tuple[list[ServedRun], list[Skipped]]:
    """Read a table of served runs.

    Parameters
    ----------
    path : a table of runs, or of TTFT/TPOT points
    choice : which rows
    splits : which part each row is in; default: ``splits.csv`` beside the table, if it is there

    Raises
    ------
    CalibrationError : no such table, a part that is not one, or no row of those asked for
    """
    choice = choice or Choice()
    table = read_served(path)
    beside = path.parent / SPLITS
    parts = read_parts(splits or beside, path) if splits or beside.is_file() else {}
    for part in choice.parts:
        if part not in PARTS:
            raise CalibrationError(f"part {part!r}; allowed: {', '.join(PARTS)}")
    if choice.parts and not parts:
        raise CalibrationError(f"{path}: no split says which part its runs are in; name one with --splits")
    wanted = [
        (row, label, note)
        for row in table.rows
        for part, note in [parts.get(row.text("run_id"), ("", ""))]
        for label in [label_of(row, part, table.kind)]
        if choice.wants(label)
    ][: choice.limit]
    if not wanted:
        raise CalibrationError(
            f"{path}: none of its {len(table.rows)} rows is of the part, GPU and model asked for"
        )
    runs: list[ServedRun] = []
    skipped: list[Skipped] = []
    for row, label, note in wanted:
        try:
            runs.append(_run(table, row, label, note))
        except CalibrationError as error:
            skipped.append(Skipped(label, str(error)))
    return runs, skipped


def _run(table: ServedTable, row: Row, label: Label, note: str) -> ServedRun:
    if table.kind == "points":
        return served_point(row, label.part, note)
    return served_run(row, table.path, label.part, note)
