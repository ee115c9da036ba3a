"""Timed kernels as columns: one row a shape, in the long schema that every importer and the timer write.

Missing values are -1 in counts, NaN in times and "" in names. A table never changes; ``where`` and ``take``
return parts of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ..hwmodels.errors import nearest
from .errors import CalibrationError

NAMES: Final = (
    "gpu", "framework", "framework_version", "kernel_source", "op", "dtype", "kv_dtype", "distribution", "source",
)  # fmt: skip
"""Columns of text."""
COUNTS: Final = (
    "m", "n", "k", "batch", "q_len", "kv_len", "n_heads", "n_kv_heads", "head_dim", "window", "bytes",
    "world_size", "num_tokens", "hidden", "inter", "topk", "n_experts", "tp", "ep", "n_samples",
)  # fmt: skip
"""Columns of whole numbers."""
TIMES: Final = ("latency_us", "power_w")
"""Columns of real numbers."""
SCHEMA: Final = (
    "gpu", "framework", "framework_version", "kernel_source", "op", "dtype", "kv_dtype", "m", "n", "k", "batch",
    "q_len", "kv_len", "n_heads", "n_kv_heads", "head_dim", "window", "bytes", "world_size", "num_tokens",
    "hidden", "inter", "topk", "n_experts", "tp", "ep", "distribution", "latency_us", "n_samples", "power_w",
    "source",
)  # fmt: skip
"""All columns, in the order in which they are written."""
_REQUIRED = ("op", "latency_us")
_MISSING_COUNT = -1
_LARGEST_COUNT = 2**53

Column = NDArray[Any]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class KernelTable:
    """Immutable columns of timed kernels.

    Attributes
    ----------
    columns : one array a column of ``SCHEMA``, all of one length; read-only
    origin : file or run that the rows come from, for messages
    """

    columns: Mapping[str, Column]
    origin: str = ""

    @classmethod
    def of(cls, columns: Mapping[str, Sequence[Any] | Column], origin: str = "") -> KernelTable:
        """Build a table from some of its columns; the others are missing throughout.

        Raises
        ------
        CalibrationError : no rows' worth of ``op`` and ``latency_us``, columns of unequal length, or an
            unknown column

        Examples
        --------
        >>> table = KernelTable.of({"op": ["gemm"], "m": [1], "n": [4096], "k": [4096], "latency_us": [14.0]})
        >>> len(table), int(table["m"][0]), int(table["batch"][0])
        (1, 1, -1)
        """
        _check_names(columns, origin)
        n = len(columns["op"])
        filled: dict[str, Column] = {}
        for name in SCHEMA:
            values = columns.get(name)
            column = _missing(name, n) if values is None else _coerced(name, values)
            if len(column) != n:
                where = f" in {origin}" if origin else ""
                raise CalibrationError(
                    f"column {name!r}{where} has {len(column)} values for {n} rows of 'op'"
                )
            column.setflags(write=False)
            filled[name] = column
        return cls(filled, origin)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.columns["op"])

    def __getitem__(self, name: str) -> Column:
        """Return one column."""
        return self.columns[name]

    @property
    def latency_us(self) -> NDArray[np.float64]:
        """Measured time of one call [us]."""
        return self.columns["latency_us"]

    @property
    def lane_key(self) -> Column:
        """Software lane of each row: ``framework/kernel_source/dtype/kv_dtype``, parts that are missing left empty."""
        parts = (self[name] for name in ("framework", "kernel_source", "dtype", "kv_dtype"))
        return np.array(["/".join(row) for row in zip(*parts, strict=True)], dtype=object)

    def where(self, mask: Mask) -> KernelTable:
        """Return the rows of a mask."""
        return self.take(np.flatnonzero(mask))

    def take(self, rows: NDArray[np.int64]) -> KernelTable:
        """Return rows by index, in that order."""
        columns = {name: column[rows] for name, column in self.columns.items()}
        for column in columns.values():
            column.setflags(write=False)
        return KernelTable(columns, self.origin)

    def only(self, **equal: str | int | Iterable[str | int]) -> KernelTable:
        """Return the rows whose columns equal the given values (or one of several).

        >>> KernelTable.of({"op": ["gemm", "moe"], "latency_us": [1.0, 2.0]}).only(op="gemm")["latency_us"]
        array([1.])
        """
        mask = np.ones(len(self), dtype=bool)
        for name, value in equal.items():
            allowed = [value] if isinstance(value, str | int) else list(value)
            mask &= np.isin(self[name], allowed) if name not in NAMES else _is_one_of(self[name], allowed)
        return self.where(mask)

    def numbers(self, *names: str) -> list[NDArray[np.float64]]:
        """Return count columns as float64, for the timing functions."""
        return [self[name].astype(np.float64) for name in names]

    def sample(self, rows: int, seed: int = 0) -> KernelTable:
        """Return at most ``rows`` rows, drawn without replacement, in their order."""
        if len(self) <= rows:
            return self
        return self.take(np.sort(np.random.default_rng(seed).choice(len(self), rows, replace=False)))


def concat(tables: Sequence[KernelTable]) -> KernelTable:
    """Return the rows of several tables as one."""
    columns = {name: np.concatenate([table[name] for table in tables]) for name in SCHEMA}
    return KernelTable.of(columns, ", ".join(dict.fromkeys(table.origin for table in tables)))


def read_table(path: str | os.PathLike[str], **equal: str | Sequence[str]) -> KernelTable:
    """Read a table in the long schema: Parquet, or CSV with or without gzip.

    Parameters
    ----------
    path : ``.parquet``, ``.csv`` or ``.csv.gz``
    equal : values that text columns must have (``op="gemm"``, ``framework=["vllm", "sglang"]``); other rows of a
        Parquet file are not read

    Raises
    ------
    CalibrationError : no such file, not a table, a column missing, or a cell that is no number
    """
    path = Path(path)
    filters = {name: [value] if isinstance(value, str) else list(value) for name, value in equal.items()}
    columns = read_columns(path, filters)
    table = (
        KernelTable.of({name: columns[name] for name in SCHEMA if name in columns}, str(path))
        if all(name in columns for name in _REQUIRED)
        else _refuse(path, columns)
    )
    return table.only(**filters) if filters else table


def read_columns(path: Path, filters: Mapping[str, Sequence[str]] | None = None) -> dict[str, Column]:
    """Read a Parquet or CSV file as plain columns, whatever its schema; see ``read_table``."""
    import pyarrow as pa

    if not path.is_file():
        raise CalibrationError(f"no such table: {str(path)!r}")
    try:
        read = _read_parquet(path, filters or {}) if path.suffix == ".parquet" else _read_csv(path)
    except (pa.ArrowException, OSError, EOFError, ValueError) as error:
        if isinstance(error, CalibrationError):
            raise
        raise CalibrationError(
            f"{str(path)!r} cannot be read as a table: {' '.join(str(error).split())}"
        ) from None
    return {name: _plain(read.column(name)) for name in read.column_names}


def write_table(table: KernelTable, path: str | os.PathLike[str]) -> None:
    """Write a table as Parquet, missing values as null; to a temporary name first, then renamed."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = Path(path)
    arrays: dict[str, Any] = {}
    for name in SCHEMA:
        column = table[name]
        if name in NAMES:
            arrays[name] = pa.array(column.tolist(), type=pa.string()).dictionary_encode()
        elif name in COUNTS:
            arrays[name] = pa.array(column, mask=column == _MISSING_COUNT)
        else:
            arrays[name] = pa.array(column, from_pandas=True)
    temporary = path.with_name(f".{path.name}.partial")
    pq.write_table(pa.table(arrays), temporary)  # pyright: ignore[reportUnknownMemberType]
    temporary.replace(path)


def _read_parquet(path: Path, filters: Mapping[str, Sequence[str]]) -> Any:
    import pyarrow.parquet as pq

    chosen = [(name, "in", list(values)) for name, values in filters.items()]
    return pq.read_table(path, filters=chosen or None)  # pyright: ignore[reportUnknownMemberType]


def _read_csv(path: Path) -> Any:
    import pyarrow as pa
    from pyarrow import csv

    types = {name: pa.string() for name in NAMES} | {name: pa.float64() for name in (*COUNTS, *TIMES)}
    options = csv.ConvertOptions(column_types=types, strings_can_be_null=True)
    return csv.read_csv(path, convert_options=options)


def _plain(column: Any) -> Column:
    """Return an Arrow column as numpy: text as objects, whole numbers as int64, null as missing."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.combine_chunks()
        if isinstance(column, pa.ChunkedArray):
            column = column.chunk(0) if column.num_chunks else pa.array([], type=kind)
        words = np.array([*(word or "" for word in column.dictionary.to_pylist()), ""], dtype=object)
        return words[column.indices.fill_null(len(words) - 1).to_numpy(zero_copy_only=False)]
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_null(kind):
        return np.array([word or "" for word in column.to_pylist()], dtype=object)
    if pa.types.is_integer(kind):
        return np.asarray(pc.fill_null(column.cast(pa.int64()), _MISSING_COUNT).to_numpy())
    if pa.types.is_floating(kind):
        return np.asarray(column.cast(pa.float64()).to_numpy(), dtype=np.float64)
    return np.array(column.to_pylist(), dtype=object)


def _missing(name: str, n: int) -> Column:
    if name in NAMES:
        return np.full(n, "", dtype=object)
    return np.full(n, _MISSING_COUNT, dtype=np.int64) if name in COUNTS else np.full(n, np.nan)


def _coerced(name: str, values: Sequence[Any] | Column) -> Column:
    """Return values in their column's type; what is no whole number in range counts as missing."""
    if name in NAMES:
        return np.array([word or "" for word in values], dtype=object)
    numbers = np.array(values, dtype=np.float64)
    if name in TIMES:
        return numbers
    whole = np.isfinite(numbers) & (np.abs(numbers) < _LARGEST_COUNT) & (numbers == np.rint(numbers))
    return np.where(whole, numbers, _MISSING_COUNT).astype(np.int64)


def _is_one_of(column: Column, allowed: Sequence[Any]) -> Mask:
    mask = np.zeros(len(column), dtype=bool)
    for value in allowed:
        mask |= column == value
    return mask


def _check_names(columns: Mapping[str, object], origin: str) -> None:
    where = f" in {origin}" if origin else ""
    for name in _REQUIRED:
        if name not in columns:
            raise CalibrationError(
                f"column {name!r} is missing{where}; columns there: {', '.join(columns) or 'none'}"
            )
    for name in columns:
        if name not in SCHEMA:
            close = nearest(name, SCHEMA)
            raise CalibrationError(
                f"unknown column {name!r}{where}" + (f"; nearest: {close!r}" if close else "")
            )


def _refuse(path: Path, columns: Mapping[str, object]) -> KernelTable:
    _check_names({name: None for name in columns if name in SCHEMA}, str(path))
    raise AssertionError


def software_line(table: KernelTable) -> str:
    """Return the framework, its version and the kernel of a lane's rows."""
    columns = (table[name].tolist() for name in ("framework", "framework_version", "kernel_source"))
    versions = sorted(set(zip(*columns, strict=True)))
    return "; ".join(
        ", ".join(part for part in (f"{name} {version}".strip(), kernel) if part)
        for name, version, kernel in versions
    )
