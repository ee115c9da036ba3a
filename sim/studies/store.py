"""Where the runs of a study are kept: one Parquet file a run, named by the hash of all it depends on.

A file is written under another name and then renamed, so that one that is there is whole; two processes that
do the same run write the same file. Nothing is ever overwritten by something else: a changed study finds what
it already has and runs the rest.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from .. import litter
from .study import StudyError

RUNS = "runs"
POINTS = "points.parquet"
FACTS: tuple[str, ...] = ("hash", "seed", "error", "level", "bound", "stability", "answer")


def kept_in(given: str | os.PathLike[str] | None, study: str) -> Path:
    """Return where runs are kept: in the folder that is given, or in the user's cache under a study's name."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(given) if given else cache / "membound" / study


@dataclass(frozen=True, slots=True)
class Run:
    """What is kept of one run.

    Attributes
    ----------
    hash : of everything its figures depend on
    seed : of its random draws
    settings : leaves the study set
    metrics : dotted name in ``summary.json`` -> value; None where not known
    level : how well the least known kernel is known
    bound, answer : the verdict in a word and in a sentence
    stability : ``steady``, or why mean latencies say nothing
    error : why it could not run; empty where it could
    """

    hash: str
    seed: int
    settings: Mapping[str, Any]
    metrics: Mapping[str, float | None]
    level: str | None = None
    bound: str | None = None
    stability: str | None = None
    answer: str | None = None
    error: str = ""


class Store:
    """The runs in a folder.

    Parameters
    ----------
    folder : made when the first run is kept
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.runs = self.folder / RUNS
        self._cleared = False

    def hashes(self) -> set[str]:
        """Return the hashes of all runs that are kept."""
        return {path.stem for path in self.runs.glob("*.parquet") if not path.name.startswith(".")}

    def keep(self, run: Run) -> None:
        """Keep a run.

        Raises
        ------
        StudyError : the folder cannot be written
        """
        import pyarrow as pa  # pyright: ignore[reportMissingTypeStubs]

        columns: dict[str, Any] = {name: [getattr(run, name)] for name in FACTS}
        columns["settings"] = [json.dumps(dict(run.settings), sort_keys=True, default=str)]
        numbers: Any = cast("Any", pa)
        table = {
            name: numbers.array(values, numbers.string())
            for name, values in columns.items()
            if name != "seed"
        }
        table["seed"] = numbers.array([run.seed], numbers.int64())
        table |= {
            name: numbers.array([None if value is None else float(value)], numbers.float64())
            for name, value in run.metrics.items()
        }
        self._write(numbers.table(table), self.runs / f"{run.hash}.parquet")

    def load(self, hashes: Sequence[str]) -> dict[str, Run]:
        """Return the runs of some hashes."""
        return {name: _read(self.runs / f"{name}.parquet") for name in hashes}

    def keep_points(self, rows: Iterable[Mapping[str, Any]]) -> Path:
        """Write the points of a study, one row each, for whoever reads them with one query."""
        import pyarrow as pa  # pyright: ignore[reportMissingTypeStubs]

        library: Any = cast("Any", pa)
        table = library.Table.from_pylist(_one_type_a_column(list(rows)))
        path = self.folder / POINTS
        self._write(table, path)
        return path

    def _write(self, table: Any, path: Path) -> None:
        import pyarrow.parquet as pq  # pyright: ignore[reportMissingTypeStubs]

        if not self._cleared:
            self._cleared = True
            for each in (self.folder, self.runs):
                litter.clear(each)
        temporary = litter.beside(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            cast("Any", pq).write_table(table, temporary)
            temporary.replace(path)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise StudyError(
                f"results folder {str(self.folder)!r} cannot be written: {error.strerror}"
            ) from None


def _read(path: Path) -> Run:
    import pyarrow.parquet as pq  # pyright: ignore[reportMissingTypeStubs]

    row: dict[str, Any] = cast("Any", pq).ParquetFile(path).read().to_pylist()[0]
    facts = {name: row.pop(name) for name in FACTS}
    return Run(settings=json.loads(row.pop("settings")), metrics=row, **facts)


def _one_type_a_column(rows: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows with the same columns; a column of more than numbers becomes text."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    as_text = {
        name
        for name in names
        if not all(
            row.get(name) is None or (isinstance(row[name], int | float) and not isinstance(row[name], bool))
            for row in rows
        )
    }

    def cell(name: str, value: Any) -> Any:
        if value is None:
            return None
        if name not in as_text:
            return float(value)
        return value if isinstance(value, str) else json.dumps(value, default=str)

    return [{name: cell(name, row.get(name)) for name in names} for row in rows]
