"""Reading a trace file into a workload: any format, every value checked, arrivals from 0 and in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import cast

import numpy as np
from numpy.typing import NDArray

from ....hwmodels.errors import unknown
from ...fields import WorkloadError
from ..prefix import PrefixIds
from ..workload import LATEST_NS, Follows, LoadReport, Workload
from .columns import RawTrace
from .files import layout_of
from .formats import UNITS, Wanted
from .records import read_parquet, read_records
from .table import read_table

_LONGEST = 2**31 - 1  # longest prompt or answer that is believed [tokens]; as a block it covers any prompt
_FINE_STATUS = ("", "200", "complete", "completed", "ok", "success", "successful")


def read_trace(
    wanted: Wanted,
    *,
    time_scale: float = 1.0,
    limit: int | None = None,
    slo_classes: Sequence[str] = (),
) -> Workload:
    """Read a trace.

    Parameters
    ----------
    wanted : the file and what to read of it. Where ``extra`` columns are named, requests that agree in all of
        them repeat one whole prompt
    time_scale : factor on the intervals between arrivals; 0.5 doubles the rate
    limit : take only so many requests, the earliest
    slo_classes : classes the trace may name in ``slo_class``; () allows any

    Returns
    -------
    The workload; its report counts what was dropped or sorted.

    Raises
    ------
    WorkloadError : one line naming file, line and column
    """
    raw, dropped = _without_failed(_read(wanted))
    _check_lengths(raw)
    _check_ids(raw)
    classes = _slo_classes(raw, slo_classes)
    arrivals = _arrivals(raw)
    rows = len(raw)
    arrival_ns = arrivals.ns
    if arrivals.out_of_order or (limit is not None and limit < rows):
        order = np.argsort(arrivals.ns, kind="stable") if arrivals.out_of_order else np.arange(rows)
        raw, arrival_ns = raw.only(order[:limit]), arrivals.ns[order[:limit]]
    if time_scale != 1.0:
        if not (span_s := int(arrival_ns.max()) * time_scale / 1e9) <= LATEST_NS / 1e9:
            raise WorkloadError(
                f"{wanted.path}: time_scale {time_scale:g} stretches its arrivals over {span_s:.3g} s; allowed: up to "
                "146 years"
            )
        arrival_ns = np.rint(arrival_ns * time_scale).astype(np.int64)
    report = LoadReport(
        source=wanted.path,
        format=raw.format.name,
        time_unit=arrivals.unit,
        origin=arrivals.origin,
        rows=rows + sum(dropped.values()),
        dropped=dropped,
        out_of_order=arrivals.out_of_order,
        warnings=(*_left_out(wanted.path, rows, dropped), *arrivals.warnings, *_unused(raw)),
    )
    return Workload(
        arrival_ns=arrival_ns,
        input_tokens=raw.ints("input_tokens"),
        output_tokens=raw.ints("output_tokens"),
        report=report,
        priority=raw.ints("priority") if "priority" in raw.arrays else None,
        session=_codes(raw.arrays["session_id"]) if "session_id" in raw.arrays else None,
        tenant=_codes(raw.arrays["tenant"]) if "tenant" in raw.arrays else None,
        slo_class=_class_codes(raw, classes),
        slo_classes=classes,
        request_ids=cast("NDArray[np.str_] | None", raw.arrays.get("request_id")),
        prefix=_prefix(raw, wanted.extra),
        follows=_follows(raw),
        measured=_measured(raw),
    )


@lru_cache(maxsize=4)
def read_lengths(path: str, column: str) -> NDArray[np.int64]:
    """Read one of ``input_tokens`` and ``output_tokens`` of a trace, shape (n,) [tokens].

    Raises
    ------
    WorkloadError : one line naming file, line and column
    """
    raw, _ = _without_failed(_read(Wanted(path, needs_arrival=False)))
    _check_lengths(raw)
    return raw.ints(column)


def _read(wanted: Wanted) -> RawTrace:
    layout = layout_of(wanted.path)
    if layout == "parquet":
        return read_parquet(wanted)
    return read_records(wanted) if layout == "records" else read_table(wanted)


def _without_failed(raw: RawTrace) -> tuple[RawTrace, dict[str, int]]:
    """Leave out the rows of failed requests, where the format has such, and count them by reason."""
    dropped = dict(raw.dropped)
    keep = np.ones(len(raw), dtype=np.bool_)
    if raw.format.zero_output_failed:
        failed = raw.ints("output_tokens") == 0
        dropped[raw.format.failures] = int(failed.sum())
        keep &= ~failed
    if "status" in raw.arrays:
        failed = ~np.isin(np.char.lower(raw.arrays["status"].astype(np.str_)), _FINE_STATUS)
        dropped["status not ok"] = int((failed & keep).sum())
        keep &= ~failed
    dropped = {reason: count for reason, count in dropped.items() if count}
    if not keep.any():
        raise WorkloadError(f"{raw.path}: every one of its {len(raw)} requests failed, nothing to simulate")
    return (raw if keep.all() else raw.only(np.flatnonzero(keep))), dropped


def _check_lengths(raw: RawTrace) -> None:
    for ours in ("input_tokens", "output_tokens"):
        lengths = raw.ints(ours)
        wrong = np.flatnonzero((lengths < 1) | (lengths > _LONGEST))
        if len(wrong):
            row = int(wrong[0])
            more = f" ({len(wrong)} such rows)" if len(wrong) > 1 else ""
            raise raw.error(row, ours, f"{lengths[row]} tokens; allowed: 1 to {_LONGEST}{more}")


def _check_ids(raw: RawTrace) -> None:
    ids = raw.arrays.get("request_id")
    if ids is None:
        return
    order = np.argsort(ids, kind="stable")
    same = np.flatnonzero(ids[order[1:]] == ids[order[:-1]])
    if len(same):
        first, second = order[same], order[same + 1]
        at = int(np.argmin(second))
        row = int(second[at])
        raise raw.error(
            row, "request_id", f"id {str(ids[row])!r} again; first at {raw.row_name(int(first[at]))}"
        )


@dataclass(frozen=True, slots=True)
class _Arrivals:
    """Arrival times from 0 on in the file's order [ns], and how they were read."""

    ns: NDArray[np.int64]
    unit: str
    origin: str
    out_of_order: int = 0
    warnings: tuple[str, ...] = ()


def _arrivals(raw: RawTrace) -> _Arrivals:
    """Turn the arrival column into nanoseconds since the first arrival."""
    if "arrival" not in raw.arrays:
        return _Arrivals(np.zeros(len(raw), dtype=np.int64), "none", "no arrival times in the file")
    unit = raw.found["arrival"].unit
    given = raw.arrays["arrival"]
    plain = given.astype(np.float64, copy=False)
    wrong = np.flatnonzero(~np.isfinite(plain) | (plain < 0))
    if len(wrong):
        row = int(wrong[0])
        raise raw.error(row, "arrival", f"arrival time {given[row]}; allowed: 0 or later, a finite number")
    since = cast("NDArray[np.float64]", given) - cast("NDArray[np.float64]", given).min()
    with np.errstate(over="ignore"):
        scaled = since * UNITS.get(unit, 1.0)
    if scaled.max() > LATEST_NS:
        row = int(np.argmax(scaled))
        raise raw.error(
            row, "arrival", f"{scaled[row] / 1e9:.3g} s after the first; allowed: up to 146 years"
        )
    exact = np.issubdtype(given.dtype, np.integer)
    ns = since.astype(np.int64) if exact else np.rint(scaled, out=scaled).astype(np.int64)
    del plain, since, scaled
    earlier = np.flatnonzero(ns < np.maximum.accumulate(ns))
    warnings: tuple[str, ...] = ()
    if len(earlier):
        where = f"first {raw.row_name(int(earlier[0]))}"
        warnings = (f"{raw.path}: {len(earlier)} of {len(ns)} arrivals out of order ({where}): sorted",)
    return _Arrivals(ns, unit, _origin(given, unit), len(earlier), warnings)


def _origin(given: NDArray[np.generic], unit: str) -> str:
    first = cast("NDArray[np.float64]", given).min()
    if unit == "timestamp":
        return str(np.datetime64(int(first), "ns"))  # pyright: ignore[reportUnknownArgumentType]
    return f"{first} {unit}"


def _left_out(path: str, kept: int, dropped: dict[str, int]) -> list[str]:
    total = kept + sum(dropped.values())
    return [f"{path}: {count} of {total} requests left out: {why}" for why, count in dropped.items()]


def _follows(raw: RawTrace) -> Follows | None:
    """Return which rows come a pause after the answer to the row before them in their session; None if none does.

    Rows of a session are in the order of ``turn``, or of the file without it. A session's first row, and one
    that states no pause, arrives when it says.
    """
    if not {"session_id", "think_time_s"} <= set(raw.arrays):
        return None
    pause: NDArray[np.float64] = raw.arrays["think_time_s"].astype(np.float64)
    wrong = np.flatnonzero((pause < 0) | np.isinf(pause))
    if len(wrong):
        raise raw.error(int(wrong[0]), "think_time_s", f"pause {pause[wrong[0]]:g}; allowed: from 0 on")
    session, rows = _codes(raw.arrays["session_id"]), np.arange(len(raw))
    order = np.lexsort((raw.ints("turn") if "turn" in raw.arrays else rows, session))
    later, before = order[1:], order[:-1]
    same = (session[later] == session[before]) & (session[later] >= 0) & np.isfinite(pause[later])
    after = np.full(len(raw), -1, dtype=np.int64)
    after[later[same]] = before[same]
    scale = 1e6 if raw.found["think_time_s"].unit == "ms" else 1e9
    pause_ns = np.rint(np.nan_to_num(pause) * scale).astype(np.int64)
    return Follows(after, pause_ns) if same.any() else None


def _unused(raw: RawTrace) -> list[str]:
    """Name columns that say nothing without others."""
    if "think_time_s" not in raw.arrays or "session_id" in raw.arrays:
        return []
    name = raw.found["think_time_s"].name
    return [f"{raw.path}: {name} not used: without session_id nobody knows whose pauses they are"]


def _codes(names: NDArray[np.generic]) -> NDArray[np.int64]:
    """Number distinct names by first appearance, the empty one as -1, shape (n,)."""
    distinct, first, codes = np.unique(names, return_index=True, return_inverse=True)
    rank = np.empty(len(distinct), dtype=np.int64)
    order = [int(at) for at in np.argsort(first) if str(distinct[at])]
    rank[:] = -1
    rank[order] = np.arange(len(order))
    return rank[codes]


def _slo_classes(raw: RawTrace, allowed: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the classes of a whole file."""
    names = raw.arrays.get("slo_class")
    if names is None:
        return ("default",)
    classes = ["default", *sorted({str(name) for name in np.unique(names)} - {"default", ""})]
    for name in classes[1:]:
        if allowed and name not in allowed:
            row = int(np.flatnonzero(names == name)[0])
            raise raw.error(row, "slo_class", unknown("SLO class", name, allowed))
    return tuple(classes)


def _class_codes(raw: RawTrace, classes: Sequence[str]) -> NDArray[np.int64] | None:
    """Return each request's index into the class names, shape (n,); a row without one is ``default``."""
    names = raw.arrays.get("slo_class")
    if names is None:
        return None
    index = {name: at for at, name in enumerate(classes)} | {"": 0}
    return np.array([index[str(name)] for name in names], dtype=np.int64)


def _prefix(raw: RawTrace, same_prompt: Sequence[str]) -> PrefixIds | None:
    if same_prompt:
        parts = np.stack([_codes(raw.arrays[f"+{name}"]) for name in same_prompt])
        _, prompt = np.unique(parts, axis=1, return_inverse=True)
        ids = prompt.reshape(-1).astype(np.uint64)
        return PrefixIds(np.arange(len(raw) + 1), ids, _LONGEST)
    if "hash_ids" not in raw.arrays:
        return None
    ids = raw.arrays["hash_ids"].astype(np.uint64, copy=False)
    small = ids.astype(np.uint32) if len(ids) and int(ids.max()) < 2**32 else ids
    counts, tokens, size = raw.ints("hash_counts"), raw.ints("input_tokens"), raw.format.hash_block_tokens
    for row in np.flatnonzero(counts > -(-tokens // size))[:1].tolist():
        blocks = -(-int(tokens[row]) // size)
        raise raw.error(
            row,
            "hash_ids",
            f"{counts[row]} hash ids for a prompt of {tokens[row]} tokens; allowed: at most {blocks}, one for "
            f"each {size} tokens",
        )
    return PrefixIds(np.concatenate([[0], np.cumsum(counts)]), small, size)


def _measured(raw: RawTrace) -> dict[str, NDArray[np.float64]]:
    """Return what was measured of each request, shape (n,) [s]: TTFT, E2E, and TPOT where both are known.

    TPOT is (last - first token) / (tokens - 1), not defined for one token. Gaps between a stream's chunks are
    not read: a chunk may hold several tokens.
    """
    found = {
        f"{ours}_s": raw.arrays[ours].astype(np.float64) * (UNITS[raw.found[ours].unit] / 1e9)
        for ours in ("ttft", "e2e")
        if ours in raw.arrays
    }
    if len(found) == 2:
        gaps = raw.ints("output_tokens") - 1
        with np.errstate(divide="ignore", invalid="ignore"):
            tpot = np.where(gaps > 0, (found["e2e_s"] - found["ttft_s"]) / gaps, np.nan)
        found["tpot_s"] = tpot
    return found
