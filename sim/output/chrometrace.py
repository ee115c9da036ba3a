"""A run as a Chrome trace that Perfetto opens: replicas and their resources as tracks, requests in lanes, counters.

Times are written in microseconds with three decimals, which is whole nanoseconds: the events of a cause sum exactly to
the summary's time of that cause (of several streams on one device: to that of each stream). A step's causes are drawn
one after the other in a fixed order. On a device they overlap; this shows for how long each was what the step waited
for, not when.
"""

from __future__ import annotations

import gzip
import heapq
import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..books.record import LIMITERS, RunRecord
from ..engine.request import Status

Int64Array = npt.NDArray[np.int64]
Columns = Mapping[str, Int64Array]

MOST_STEPS = 30_000
"""Runs of more steps have runs of like decode steps drawn as one event, whose sums are the same."""
TRACKS: Mapping[str, tuple[str, ...]] = {
    "host": ("host",),
    "HBM": ("hbm_weights", "hbm_kv", "hbm_activations"),
    "compute": ("compute", "latency", "launch"),
    "link": ("communication", "transfer"),
    "pipeline": ("bubble",),
}
"""Resource -> causes that are drawn on its track, in the order in which a step's time is laid out."""
STEPS_TRACK = 1
REQUESTS_PID = 0
COUNTERS: Mapping[str, tuple[str, ...]] = {
    "requests": ("running",),
    "KV blocks": ("used_blocks", "held_blocks"),
    "batch": ("n_decode", "prefill_tokens"),
}
"""Counter -> its columns of ``steps.parquet``."""


def write_trace(record: RunRecord, path: Path) -> None:
    """Write a run's trace as gzipped JSON; the same run gives the same bytes.

    Raises
    ------
    ValueError : the run kept no steps
    """
    with (
        path.open("wb") as raw,
        gzip.GzipFile("", "wb", 6, raw, mtime=0) as packed,
        io.TextIOWrapper(packed, encoding="utf-8") as text,
    ):
        text.write('{"displayTimeUnit":"ms","otherData":')
        text.write(json.dumps(about(record), separators=(",", ":")))
        text.write(',"traceEvents":[\n')
        for number, event in enumerate(trace_events(record)):
            text.write(f",\n{event}" if number else event)
        text.write("\n]}\n")


def about(record: RunRecord) -> dict[str, Any]:
    """Return what the trace says of itself: what ran, and the time by cause that its events sum to [ns]."""
    models = (record, *record.others)
    return {
        "simulated": "true",
        **{key: str(record.provenance.get(key)) for key in ("version", "device", "model", "engine", "seed")},
        "time_by_cause_ns": _causes(record),
        **({"models": [{"model": _model(each), "time_by_cause_ns": _causes(each)} for each in models]}
           if record.others else {}),
        "note": "causes of a step are drawn one after the other: for how long each was waited for, not when"
        + ("; streams run beside each other: each one's events sum to its own time, and time_by_cause_ns has what "
           "both waited for at once in proportion" if _streams(record) else "")
        + ("; each model on the device has its own tracks, whose events sum to its time by cause under models"
           if record.others else ""),
    }  # fmt: skip


def _causes(record: RunRecord) -> dict[str, int]:
    return {cause: int(value) for cause, value in record.causes_ns.items()}


def _model(record: RunRecord) -> str:
    return str(record.provenance.get("model"))


def _streams(record: RunRecord) -> list[str]:
    """Return the names of the streams of steps on one device, where there are several."""
    return list(record.beside.get("streams", {}))


def trace_events(record: RunRecord) -> Iterator[str]:
    """Yield every event as JSON: names of tracks, steps, their causes, counters, requests.

    Raises
    ------
    ValueError : the run kept no steps
    """
    pid = REQUESTS_PID
    for own in (record, *record.others):
        yield from _model_events(own, pid, f" · {_model(own)}" if record.others else "")
        pid += _replicas(own) + 1


def _replicas(record: RunRecord) -> int:
    """Return how many replicas have tracks."""
    replicas = record.steps.get("replica") if record.steps is not None else None
    return 1 if replicas is None else max(record.setup.replicas, int(replicas.max(initial=0)) + 1)


def _model_events(record: RunRecord, pid: int, said: str) -> Iterator[str]:
    """Yield the events of one model: its requests under a process, its replicas under those that follow.

    Parameters
    ----------
    pid : of its requests
    said : after the names of its processes
    """
    if record.steps is None:
        raise ValueError("the run kept no steps; simulate(..., keep_steps=True)")
    columns = dict(record.steps)
    replicas = columns.get("replica")
    for replica in range(_replicas(record)):
        own = columns if replicas is None else {k: v[replicas == replica] for k, v in columns.items()}
        yield from _replica(record, own, replica, pid + replica + 1, said)
    yield from _waiting(record, pid)
    yield from _requests(record, pid, said)


def _replica(record: RunRecord, steps: Columns, replica: int, pid: int, said: str) -> Iterator[str]:
    """Yield the tracks of one replica, of which a run without a step there has an idle one."""
    streams = _streams(record)
    own = f"{streams[replica]} stream" if streams else f"replica {replica}"
    yield _named("process_name", pid, 0, f"{own} · {record.provenance.get('device') or 'GPU'}{said}")
    yield _named("thread_name", pid, STEPS_TRACK, "steps")
    used = {
        track: kept
        for track, causes in TRACKS.items()
        if (kept := [cause for cause in causes if f"{cause}_ns" in steps and steps[f"{cause}_ns"].any()])
    }
    for number, track in enumerate(used, STEPS_TRACK + 1):
        yield _named("thread_name", pid, number, track)
    drawn = merged(steps) if len(steps["start_ns"]) > MOST_STEPS else steps
    yield from _steps(record, drawn, pid)
    at = drawn["start_ns"].copy()
    for number, causes in enumerate(used.values(), STEPS_TRACK + 1):
        for cause in causes:
            spent = drawn[f"{cause}_ns"]
            held = spent > 0
            for start, duration in zip(at[held].tolist(), spent[held].tolist(), strict=True):
                yield _span(pid, number, cause, start, start + duration)
            at += spent
    yield from _counters(steps, pid)


def _steps(record: RunRecord, steps: Columns, pid: int) -> Iterator[str]:
    """Yield steps and, between them, idle time: together the wall time of a replica."""
    names = (
        "start_ns",
        "duration_ns",
        "n_decode",
        "n_prefill",
        "prefill_tokens",
        "context_tokens",
        "running",
        "limiter",
    )
    many = steps.get("steps", np.ones(len(steps["start_ns"]), dtype=np.int64)).tolist()
    before = record.start_ns
    for row, count in zip(zip(*(steps[name].tolist() for name in names), strict=True), many, strict=True):
        start, duration, decode, prefill, tokens, context, running, limiter = row
        if start > before:
            yield _span(pid, STEPS_TRACK, "idle", before, start)
        before = start + duration
        parts = [f"decode {decode}"] * bool(decode) + [f"prefill {prefill} ({tokens} tokens)"] * bool(prefill)
        name = " + ".join(parts) or "step"
        name += f" x {count} steps" if count > 1 else ""
        args = f'"context_tokens":{context},"running":{running},"limiter":"{LIMITERS[limiter]}"'
        yield _span(pid, STEPS_TRACK, name, start, before, args)
    if before < record.end_ns:
        yield _span(pid, STEPS_TRACK, "idle", before, record.end_ns)


def merged(steps: Columns) -> dict[str, Int64Array]:
    """Return steps with runs of decode steps of equally many sequences, one right after the other, as one row.

    Times are added up; everything else is of the first step; ``steps`` says how many there are.
    """
    plain = (steps["n_prefill"] == 0) & (steps["preempted"] == 0)
    ends = steps["start_ns"] + steps["duration_ns"]
    same = plain[1:] & plain[:-1] & (ends[:-1] == steps["start_ns"][1:])
    for name in ("n_decode", "limiter"):
        same &= np.diff(steps[name]) == 0
    first = np.flatnonzero(np.append(True, ~same))
    found = {
        name: np.add.reduceat(values, first) if name.endswith("_ns") and name != "start_ns" else values[first]
        for name, values in steps.items()
    }
    return found | {"steps": np.diff(np.append(first, len(plain)))}


def _counters(steps: Columns, pid: int) -> Iterator[str]:
    """Yield levels where they change, each standing from the start of a step on, and 0 after the last."""
    if not len(steps["start_ns"]):
        return
    end = int(steps["start_ns"][-1] + steps["duration_ns"][-1])
    for name, columns in COUNTERS.items():
        values = np.stack([steps[column] for column in columns], axis=1)
        changed = np.append(True, np.any(np.diff(values, axis=0) != 0, axis=1))
        rows = zip(steps["start_ns"][changed].tolist(), values[changed].tolist(), strict=True)
        for start, row in (*rows, (end, [0] * len(columns))):
            args = ",".join(f'"{column}":{value}' for column, value in zip(columns, row, strict=True))
            yield f'{{"ph":"C","pid":{pid},"name":"{name}","ts":{_us(start)},"args":{{{args}}}}}'


def _waiting(record: RunRecord, pid: int) -> Iterator[str]:
    """Yield the number of requests that wait to be scheduled for the first time, wherever they wait."""
    requests = record.requests
    served = requests["first_scheduled_ns"] >= 0
    times = np.concatenate((requests["arrival_ns"][served], requests["first_scheduled_ns"][served]))
    change = np.repeat([1, -1], int(served.sum()))
    moments, place = np.unique(times, return_inverse=True)
    level = np.cumsum(np.bincount(place, weights=change, minlength=len(moments))).astype(np.int64)
    changed = np.append(True, np.diff(level) != 0) if len(level) else np.zeros(0, dtype=np.bool_)
    for time, waiting in zip(moments[changed].tolist(), level[changed].tolist(), strict=True):
        yield f'{{"ph":"C","pid":{pid},"name":"waiting","ts":{_us(time)},"args":{{"waiting":{waiting}}}}}'


def _requests(record: RunRecord, pid: int, said: str) -> Iterator[str]:
    """Yield requests in lanes, the first that is free: each with queue, prefill and decode inside it."""
    yield _named("process_name", pid, 0, f"requests{said}")
    names = ("index", "arrival_ns", "first_scheduled_ns", "first_token_ns", "last_token_ns", "input_tokens",
             "output_tokens", "num_preemptions", "status")  # fmt: skip
    rows = [
        row for row in zip(*(record.requests[name].tolist() for name in names), strict=True) if row[4] >= 0
    ]
    free: list[int] = []
    busy: list[tuple[int, int]] = []
    lanes = 0
    for index, arrival, scheduled, first, last, inputs, outputs, preemptions, status in sorted(
        rows, key=lambda row: row[1]
    ):
        while busy and busy[0][0] <= arrival:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if not free:
            lanes += 1
            heapq.heappush(free, lanes)
            yield _named("thread_name", pid, lanes, f"lane {lanes}")
        lane = heapq.heappop(free)
        heapq.heappush(busy, (max(last, arrival + 1), lane))
        args = (
            f'"input_tokens":{inputs},"output_tokens":{outputs},"preemptions":{preemptions},'
            f'"status":"{Status(status).name.lower()}"'
        )
        yield _span(pid, lane, f"request {index}", arrival, last, args)
        for phase, start, end in (
            ("queue", arrival, scheduled),
            ("prefill", scheduled, first),
            ("decode", first, last),
        ):
            if 0 <= start < end:
                yield _span(pid, lane, phase, start, end)


def _span(pid: int, tid: int, name: str, start: int, end: int, args: str = "") -> str:
    """Return one event from ``start`` to ``end`` [ns]."""
    more = f',"args":{{{args}}}' if args else ""
    return f'{{"ph":"X","pid":{pid},"tid":{tid},"name":"{name}","ts":{_us(start)},"dur":{_us(end - start)}{more}}}'


def _named(what: str, pid: int, tid: int, name: str) -> str:
    args = json.dumps({"name": name}, ensure_ascii=False)
    return f'{{"ph":"M","pid":{pid},"tid":{tid},"name":"{what}","args":{args}}}'


def _us(nanoseconds: int) -> str:
    """Return whole nanoseconds in microseconds.

    >>> _us(1_234_005)
    '1234.005'
    """
    return f"{nanoseconds // 1000}.{nanoseconds % 1000:03d}"
