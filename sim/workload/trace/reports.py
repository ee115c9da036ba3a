"""The JSON reports of load generators, which hold whole runs: their completed requests as rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from ...fields import WorkloadError
from .formats import TraceFormat

Record = Mapping[str, Any]
REPORTS = ("guidellm", "vllm_bench")
_LISTS = ("start_times", "input_lens", "output_lens", "ttfts", "latencies")


def report_rows(
    path: str, known: TraceFormat, records: Sequence[Record], part: int | None
) -> tuple[list[Record], dict[str, int]]:
    """Return the completed requests of one run of a report, and how many others there were, by reason.

    Parameters
    ----------
    part : which run; None if there is only one

    Raises
    ------
    WorkloadError : several runs and no ``part``, or a report of another make
    """
    guidellm = known.name == "guidellm"
    runs = _records(path, "benchmarks", records[0].get("benchmarks")) if guidellm else list(records)
    run = _pick(path, runs, part)
    rows, dropped = _guidellm_rows(path, run) if guidellm else _vllm_rows(path, run)
    if not rows:
        raise WorkloadError(f"{path}: no completed requests in this {known.name} report")
    return rows, dropped


def _pick(path: str, runs: Sequence[Record], part: int | None) -> Record:
    if part is None and len(runs) != 1:
        text = f"holds {len(runs)} runs; choose one with trace.part: 0 to {len(runs) - 1}"
        raise WorkloadError(f"{path}: {text}" if runs else f"{path}: a report without runs")
    if part is not None and part >= len(runs):
        raise WorkloadError(f"{path}: trace.part is {part}, but the runs are 0 to {len(runs) - 1}")
    return runs[part or 0]


def _guidellm_rows(path: str, run: Record) -> tuple[list[Record], dict[str, int]]:
    """Take the successful requests of a guidellm benchmark; it lists the others apart."""
    requests: object = run.get("requests")
    if not isinstance(requests, Mapping):
        raise WorkloadError(f"{path}: a guidellm benchmark without per-request records ('requests')")
    kept = cast("Record", requests)
    rows = _records(path, "requests.successful", kept.get("successful"))
    failed = {kind: len(_list(path, kind, kept.get(kind))) for kind in ("incomplete", "errored")}
    return rows, {kind: count for kind, count in failed.items() if count}


def _vllm_rows(path: str, run: Record) -> tuple[list[Record], dict[str, int]]:
    """Turn the parallel lists of ``vllm bench serve --save-detailed`` into rows, failed requests left out."""
    lists = {key: _list(path, key, run.get(key)) for key in _LISTS if run.get(key)}
    if "input_lens" not in lists:
        raise WorkloadError(f"{path}: no per-request lists; run vllm bench serve with --save-detailed")
    sizes = {key: len(values) for key, values in lists.items()}
    if len(set(sizes.values())) > 1:
        raise WorkloadError(f"{path}: lists of different lengths: {sizes}")
    errors, gaps = _list(path, "errors", run.get("errors")), _list(path, "itls", run.get("itls"))
    rows: list[Record] = []
    for at in range(sizes["input_lens"]):
        if at < len(errors) and errors[at]:
            continue
        row = {key: values[at] for key, values in lists.items()}
        if "latencies" not in row and "ttfts" in row and at < len(gaps):
            row["latencies"] = _sum(path, at, row["ttfts"], gaps[at])
        rows.append(row)
    failed = sizes["input_lens"] - len(rows)
    return rows, {"an error": failed} if failed else {}


def _sum(path: str, at: int, first: object, gaps: object) -> float:
    try:
        return cast("float", first) + sum(cast("Sequence[float]", gaps))
    except TypeError:
        raise WorkloadError(f"{path}: request {at}, column 'itls': not a list of seconds") from None


def _list(path: str, what: str, value: object) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise WorkloadError(f"{path}: {what!r} is {str(value)[:40]!r}, not a list")
    return cast("list[Any]", value)


def _records(path: str, what: str, value: object) -> list[Record]:
    found = _list(path, what, value)
    for at, item in enumerate(found):
        if not isinstance(item, Mapping):
            raise WorkloadError(f"{path}: {what}.{at} is {str(item)[:40]!r}, not a record")
    return cast("list[Record]", found)
