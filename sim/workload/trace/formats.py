"""The trace formats, as data: which column of a file is which of ours, and in what unit.

A table format is recognised by its header, a record format by the keys of its records.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from ....hwmodels.errors import nearest, unknown
from ...fields import WorkloadError

UNITS = {"s": 1e9, "ms": 1e6, "us": 1e3, "ns": 1.0}  # nanoseconds in one


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a file: its name there (dotted inside records) and, for times, its unit."""

    name: str
    unit: str = ""


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """One format.

    Attributes
    ----------
    name : as in ``workload.trace.format``
    columns : our name to the spellings it may have in the file, most usual first
    required : our columns a file must have; ``arrival`` is dispensable where ``workload.arrivals`` is given
    marks : spellings whose presence tells this format from the others
    hash_block_tokens : tokens that one hash id covers
    failures : which rows stand for failed requests, in words; they are left out and counted
    zero_output_failed : whether no output tokens means a failed request
    """

    name: str
    columns: Mapping[str, tuple[Column, ...]]
    marks: tuple[str, ...]
    required: tuple[str, ...] = ("arrival", "input_tokens", "output_tokens")
    hash_block_tokens: int = 512
    failures: str = ""
    zero_output_failed: bool = False
    aliases: tuple[str, ...] = field(default=())


def _columns(**named: str | tuple[Column, ...]) -> dict[str, tuple[Column, ...]]:
    return {ours: (Column(name),) if isinstance(name, str) else name for ours, name in named.items()}


def _times(stem: str, *units: str) -> tuple[Column, ...]:
    return tuple(Column(f"{stem}_{unit}", unit) for unit in units)


GENERIC_COLUMNS = _columns(
    request_id="request_id",
    arrival=_times("arrival", "s", "ms", "us", "ns"),
    input_tokens="input_tokens",
    output_tokens="output_tokens",
    session_id="session_id",
    turn="turn",
    think_time_s="think_time_s",
    hash_ids="hash_ids",
    tenant=(Column("tenant"), Column("tenant_id"), Column("user_id")),
    priority="priority",
    slo_class="slo_class",
    status="status",
    ttft=_times("ttft", "ms", "s"),
    e2e=_times("e2e", "ms", "s"),
)

TABLE_FORMATS = (
    TraceFormat(
        "azure",
        _columns(
            arrival=(Column("TIMESTAMP", "timestamp"),),
            input_tokens="ContextTokens",
            output_tokens="GeneratedTokens",
        ),
        marks=("ContextTokens", "GeneratedTokens"),
    ),
    TraceFormat(
        "burstgpt",
        _columns(
            arrival=(Column("Timestamp", "s"),),
            input_tokens="Request tokens",
            output_tokens="Response tokens",
            session_id="Session ID",
        ),
        marks=("Request tokens", "Response tokens"),
        failures="no response tokens",
        zero_output_failed=True,
    ),
    TraceFormat(
        "vidur",
        _columns(
            arrival=(Column("arrived_at", "s"),),
            input_tokens="num_prefill_tokens",
            output_tokens="num_decode_tokens",
        ),
        marks=("num_prefill_tokens", "num_decode_tokens"),
    ),
    TraceFormat(
        "splitwise",
        _columns(
            request_id="request_id",
            arrival=(Column("arrival_timestamp", "s"),),
            input_tokens="prompt_size",
            output_tokens="token_size",
        ),
        marks=("prompt_size", "token_size"),
    ),
    TraceFormat(
        "generic", GENERIC_COLUMNS, marks=("input_tokens", "output_tokens"), aliases=("csv", "measured")
    ),
)

RECORD_FORMATS = (
    TraceFormat(
        "mooncake",
        _columns(
            arrival=(Column("timestamp", "ms"),),
            input_tokens="input_length",
            output_tokens="output_length",
            hash_ids="hash_ids",
            session_id="session_id",
            think_time_s=(Column("delay", "ms"),),
        ),
        marks=("input_length", "output_length"),
    ),
    TraceFormat(
        "aiperf",
        _columns(
            request_id="metadata.x_request_id",
            arrival=(Column("metadata.request_start_ns", "ns"),),
            input_tokens="metrics.input_sequence_length.value",
            output_tokens="metrics.output_sequence_length.value",
            ttft=(Column("metrics.time_to_first_token.value", "ms"),),
            e2e=(Column("metrics.request_latency.value", "ms"),),
        ),
        marks=("metadata", "metrics"),
        failures="an error or a cancellation",
    ),
    TraceFormat(
        "guidellm",
        _columns(
            request_id="request_id",
            arrival=(Column("request_start_time", "s"), Column("start_time", "s")),
            input_tokens="prompt_tokens",
            output_tokens="output_tokens",
            ttft=(Column("time_to_first_token_ms", "ms"),),
            e2e=(Column("request_latency", "s"),),
        ),
        marks=("benchmarks",),
        failures="incomplete or errored",
    ),
    TraceFormat(
        "vllm_bench",
        _columns(
            arrival=(Column("start_times", "s"),),
            input_tokens="input_lens",
            output_tokens="output_lens",
            ttft=(Column("ttfts", "s"),),
            e2e=(Column("latencies", "s"),),
        ),
        marks=("total_input_tokens", "request_throughput"),
        failures="an error",
    ),
    TraceFormat(
        "generic", GENERIC_COLUMNS, marks=("input_tokens", "output_tokens"), aliases=("jsonl", "measured")
    ),
)


def format_names() -> tuple[str, ...]:
    """Return the names ``workload.trace.format`` takes, ``auto`` first."""
    return ("auto", *sorted({known.name for known in TABLE_FORMATS + RECORD_FORMATS}))


def detect(keys: Collection[str], formats: tuple[TraceFormat, ...], wanted: str, where: str) -> TraceFormat:
    """Return the format whose marks are among ``keys``, or the one asked for by name.

    Raises
    ------
    WorkloadError : the header is of no known format, or not of the one asked for
    """
    if wanted != "auto":
        for known in formats:
            if known.name == wanted:
                return known
        names = ", ".join(known.name for known in formats)
        raise WorkloadError(f"{where}: not a {wanted} trace by its layout; formats of this layout: {names}")
    for known in formats:
        if all(mark in keys for mark in known.marks):
            return known
    best = max(formats, key=lambda known: len(_found(known, keys)))
    if _found(best, keys):
        return best
    shown = ", ".join(sorted(keys)[:12])
    headers = "; ".join(f"{known.name}: {','.join(known.marks)}" for known in formats)
    raise WorkloadError(f"{where}: not a known trace: has {shown}; known by their columns: {headers}")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to read of a file.

    Attributes
    ----------
    path : the file
    format : a format's name, or ``auto``
    needs_arrival : False where arrivals come from elsewhere
    part : which run of a report that holds several
    extra : further columns to read as text
    """

    path: str
    format: str = "auto"
    needs_arrival: bool = True
    part: int | None = None
    extra: tuple[str, ...] = ()


def locate_columns(
    known: TraceFormat, keys: Collection[str], where: str, wanted: Wanted
) -> dict[str, Column]:
    """Return our column name to the file's column, for those the file has.

    Raises
    ------
    WorkloadError : a required column is missing; names the nearest one that is there
    """
    found = _found(known, keys)
    for name in wanted.extra:
        if name not in keys:
            raise WorkloadError(f"{where}: {unknown('column', name, keys)}")
        found[f"+{name}"] = Column(name)
    for ours in known.required:
        if ours in found or (ours == "arrival" and not wanted.needs_arrival):
            continue
        spellings = [column.name for column in known.columns[ours]]
        close = nearest(spellings[0], keys)
        raise WorkloadError(
            f"{where}: missing column {' or '.join(map(repr, spellings))} of the {known.name} format"
            + (f"; nearest: {close!r}" if close else "")
            + f"; has: {', '.join(sorted(keys)[:12])}"
            + ("; without arrival times give workload.arrivals" if ours == "arrival" else "")
        )
    return found


def _found(known: TraceFormat, keys: Collection[str]) -> dict[str, Column]:
    return {
        ours: next(column for column in spellings if column.name in keys)
        for ours, spellings in known.columns.items()
        if any(column.name in keys for column in spellings)
    }
