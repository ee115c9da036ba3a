"""A run's tables as pictures need them, from a result at hand or from a result directory."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ...hwmodels.errors import MemboundError
from ...hwmodels.plainjson import plain_json
from .buckets import Array, Columns
from .tables import position_table, requests_table

if TYPE_CHECKING:
    from .result import SimulationResult

BUCKETS = 240


class ResultError(MemboundError):
    """A folder that holds no result."""


@dataclass(frozen=True, slots=True)
class View:
    """A run's tables.

    Attributes
    ----------
    summary : the keys of ``summary.json``
    requests : columns of ``requests.parquet``; times that never came are -1
    steps : columns of ``steps.parquet``; None where they were not kept
    positions : columns of ``itl_by_position.parquet``; None where they were not kept
    replicas : engines that served side by side
    """

    summary: Mapping[str, Any]
    requests: Columns
    steps: Columns | None = None
    positions: Columns | None = None
    replicas: int = 1

    @property
    def start_ns(self) -> int:
        """First arrival [ns]."""
        return int(self.requests["arrival_ns"].min())

    @property
    def end_ns(self) -> int:
        """Last token, or the end of the last step that started before it [ns]."""
        return max(int(self.requests["last_token_ns"].max()), self.start_ns)

    @property
    def parts(self) -> int:
        """Engines whose steps were kept: the replicas, or the parts of a split device, each of the same weight."""
        if self.steps is None or "replica" not in self.steps:
            return self.replicas
        return max(self.replicas, len(np.unique(self.steps["replica"])))

    def edges(self, buckets: int = BUCKETS) -> Array:
        """Return the ends of equal buckets from first arrival to last token, shape (buckets + 1,) [ns]."""
        return np.linspace(self.start_ns, max(self.end_ns, self.start_ns + 1), buckets + 1)


def view_of(result: SimulationResult) -> View:
    """Return the view of a run at hand; ``simulate(..., keep_steps=True)`` gives it steps."""
    record = result.record
    positions = position_table(record)
    return View(
        result.summary(),
        columns_of_table(requests_table(record)),
        record.steps,
        None if positions is None else columns_of_table(positions),
        record.setup.replicas,
    )


def read_view(folder: str | Path) -> View:
    """Read the view of a result directory.

    Raises
    ------
    ResultError : the folder is not there, holds no result, or one that cannot be read
    """
    path = Path(folder)
    missing = [name for name in ("summary.json", "requests.parquet") if not os.path.isfile(path / name)]
    if missing:
        what = "is not there" if not os.path.exists(path) else f"lacks {missing[0]}"
        raise ResultError(
            f"result directory {str(folder)!r} {what}; allowed: a folder that `membound simulate --out` wrote"
        )
    try:
        summary: object = plain_json((path / "summary.json").read_text(encoding="utf-8"))
        facts_file = path / "provenance.json"
        facts: object = plain_json(facts_file.read_text(encoding="utf-8")) if facts_file.is_file() else {}
        tables = {name: _read(path / f"{name}.parquet") for name in ("requests", "steps", "itl_by_position")}
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ResultError(f"result directory {str(folder)!r} cannot be read: {reason}") from error
    if not isinstance(facts, dict) or not (
        isinstance(summary, dict) and {"scenario", "verdict"} <= set(cast("dict[str, Any]", summary))
    ):
        raise ResultError(
            f"result directory {str(folder)!r}: summary.json or provenance.json holds no result"
        )
    requests = tables["requests"]
    assert requests is not None
    if not len(requests["arrival_ns"]):
        raise ResultError(f"result directory {str(folder)!r} has no request; allowed: one or more")
    return View(
        cast("dict[str, Any]", summary),
        requests,
        tables["steps"],
        tables["itl_by_position"],
        int(cast("dict[str, Any]", facts).get("replicas") or 1),
    )


def _read(path: Path) -> Columns | None:
    if not path.is_file():
        return None
    return columns_of_table(importlib.import_module("pyarrow.parquet").read_table(path))


def columns_of_table(table: Any) -> Columns:
    """Return the columns of an Arrow table as arrays: missing whole numbers -1, other missing numbers NaN."""
    pa = importlib.import_module("pyarrow")
    found: dict[str, Array] = {}
    for name in table.column_names:
        column = table[name]
        if column.null_count and pa.types.is_integer(column.type):
            column = column.fill_null(-1)
        if pa.types.is_dictionary(column.type):
            found[name] = np.array(column.to_pylist(), dtype=object)
        else:
            found[name] = column.to_numpy()
    return found
