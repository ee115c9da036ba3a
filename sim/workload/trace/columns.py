"""From a file's text values to arrays, with the row and column of the first value that cannot be read."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np
from numpy.typing import NDArray

from ...fields import WorkloadError
from .formats import Column, TraceFormat

_LARGEST_ID = 2**64 - 1
_OFFSET = re.compile(r"([+-])(\d\d):?(\d\d)$")


@dataclass(slots=True)
class RawTrace:
    """A trace as read: our columns in the file's order, and how to name a row in an error.

    Attributes
    ----------
    path, format : where it comes from
    found : our column name to the file's column
    arrays : our column name to values, shape (n,): arrival (float in the file's unit, or int [ns]), lengths
        [tokens], ttft and e2e (in the file's unit), hash_ids as one array of all rows beside ``hash_counts``,
        and ``+NAME`` as text for each extra column asked for
    row_name : row (from 0) to how a person finds it: ``line 12`` or ``request 3``
    dropped : reason to rows left out
    """

    path: str
    format: TraceFormat
    found: dict[str, Column]
    arrays: dict[str, NDArray[np.generic]]
    row_name: Callable[[int], str]
    dropped: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        """Rows that were read and not dropped."""
        return len(self.arrays["input_tokens"])

    def only(self, rows: NDArray[np.int64]) -> RawTrace:
        """Return the trace with only these rows, in this order."""
        arrays = {name: array[rows] for name, array in self.arrays.items() if not name.startswith("hash_")}
        if "hash_ids" in self.arrays:
            counts = self.arrays["hash_counts"].astype(np.int64)
            ends = np.concatenate([[0], np.cumsum(counts)])
            arrays["hash_counts"] = counts[rows]
            pieces = [self.arrays["hash_ids"][ends[row] : ends[row + 1]] for row in rows.tolist()]
            arrays["hash_ids"] = np.concatenate(pieces) if pieces else self.arrays["hash_ids"][:0]
        names = self.row_name

        def name(row: int) -> str:
            return names(int(rows[row]))

        return RawTrace(self.path, self.format, self.found, arrays, name, self.dropped)

    def ints(self, ours: str) -> NDArray[np.int64]:
        """Return a column of whole numbers, shape (n,)."""
        return self.arrays[ours].astype(np.int64, copy=False)

    def error(self, row: int, ours: str, text: str) -> WorkloadError:
        """Return the one-line error about one value."""
        return WorkloadError(f"{self.path}: {self.row_name(row)}, column {self.found[ours].name!r}: {text}")


class BadValueError(Exception):
    """A value that is not what its column holds."""

    def __init__(self, row: int, text: str) -> None:
        super().__init__(text)
        self.row, self.text = row, text


def to_array(ours: str, column: Column, values: Sequence[object]) -> NDArray[np.generic]:
    """Turn the values of one column into an array, shape (n,).

    Raises
    ------
    BadValueError : with the row within ``values`` (from 0) of the first value that cannot be read
    """
    if ours == "arrival" and column.unit == "timestamp":
        return _each(values, _timestamps, _timestamp, np.int64)
    if ours == "arrival" and column.unit == "ns":
        return _each(values, _integers, _integer, np.int64)
    if ours in ("ttft", "e2e", "think_time_s"):
        known = [math.nan if value in (None, "") else value for value in values]  # not every request has one
        return _each(known, _floats, _float, np.float64)
    if ours == "arrival":
        return _each(values, _floats, _float, np.float64)
    if ours in ("input_tokens", "output_tokens", "priority", "turn"):
        return _each(values, _integers, _integer, np.int64)
    # any other column is text
    return np.array(["" if value is None else str(value).strip() for value in values])


def hash_ids(values: Sequence[object]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Turn lists of hash ids (``[0, 1]`` or ``"0 1"``) into all ids in one array and the number in each row.

    Raises
    ------
    BadValueError : an id that is not a whole number, or has more than 64 bits
    """
    counts = np.empty(len(values), dtype=np.int64)
    ids: list[int] = []
    for row, value in enumerate(values):
        try:
            if isinstance(value, str):
                found = [int(text) for text in re.split(r"[\s,;\[\]]+", value) if text]
            else:
                found = [_identity(item) for item in cast("Iterable[object]", value or ())]
        except (TypeError, ValueError):
            raise BadValueError(row, f"{value!r} is not a list of whole-number hash ids") from None
        if found and not 0 <= min(found) <= max(found) <= _LARGEST_ID:
            wrong = next(each for each in found if not 0 <= each <= _LARGEST_ID)
            raise BadValueError(row, f"hash id {wrong}; allowed: whole numbers from 0 to 2^64 - 1")
        ids += found
        counts[row] = len(found)
    return np.array(ids, dtype=np.uint64), counts


def _identity(item: object) -> int:
    if type(item) is int:
        return item
    raise ValueError


def _each(
    values: Sequence[object],
    all_at_once: Callable[[Sequence[object]], NDArray[np.generic]],
    one: Callable[[object], object],
    dtype: type[np.generic],
) -> NDArray[np.generic]:
    """Convert all values by the fast function, or one by one where that fails, to find the culprit."""
    try:
        return all_at_once(values)
    except (ValueError, TypeError, OverflowError):
        pass
    out = np.empty(len(values), dtype=dtype)
    for row, value in enumerate(values):
        if value is None or value == "":
            raise BadValueError(row, "missing value")
        try:
            out[row] = one(value)  # pyright: ignore[reportArgumentType, reportCallIssue]
        except (ValueError, TypeError, OverflowError) as error:
            raise BadValueError(row, f"{value!r} {error}") from None
    return out


def _floats(values: Sequence[object]) -> NDArray[np.float64]:
    return np.array(list(map(float, values)), dtype=np.float64)  # pyright: ignore[reportArgumentType]


def _float(value: object) -> float:
    try:
        if isinstance(value, bool):
            raise TypeError
        return float(value)  # pyright: ignore[reportArgumentType]
    except (ValueError, TypeError):
        raise ValueError("is not a number") from None


def _integers(values: Sequence[object]) -> NDArray[np.int64]:
    if not {str, int}.issuperset(map(type, values)):
        raise ValueError  # int(2.7) would be 2, int(True) 1
    return np.array(list(map(int, values)), dtype=np.int64)  # pyright: ignore[reportArgumentType]


def _integer(value: object) -> int:
    number = value if type(value) is int else _float(value)
    if isinstance(number, float) and not number.is_integer():
        raise ValueError("is not a whole number")
    if abs(number) >= 2**63:
        raise ValueError("is too large")
    return int(number)


def _timestamps(values: Sequence[object]) -> NDArray[np.int64]:
    """Read ISO dates with up to nine fractional digits, UTC or without zone [ns since 1970]."""
    texts = [str(value).removesuffix("Z").removesuffix("+00:00") for value in values]
    if any(len(text) < 16 or text[10] not in "T " or "+" in text or "-" in text[10:] for text in texts):
        raise ValueError  # a bare date, or a zone: read one by one
    stamps = np.array(texts).astype("datetime64[ns]").astype(np.int64)
    if (stamps == np.iinfo(np.int64).min).any():
        raise ValueError
    return stamps


def _timestamp(value: object) -> int:
    text = str(value).strip().removesuffix("Z")
    offset_ns = 0
    zone = _OFFSET.search(text)
    if zone:
        minutes = int(zone[2]) * 60 + int(zone[3])
        offset_ns = (1 if zone[1] == "+" else -1) * minutes * 60 * 10**9
        text = text[: zone.start()]
    if not re.match(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d", text):
        raise ValueError("is not a date and time such as 2023-11-16 18:17:03.9799600")
    try:
        return int(np.datetime64(text, "ns").astype(np.int64)) - offset_ns
    except ValueError:
        raise ValueError("is not a date and time such as 2023-11-16 18:17:03.9799600") from None
