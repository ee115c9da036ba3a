"""Rows of a table of runs (the schema of ``e2e_runs.csv``) as runs to play."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .run import (
    LATENCIES,
    STATISTICS,
    Label,
    ServedRun,
    beside,
    device_of,
    groups,
    model_of,
    scenario_of,
    weights_of,
)
from .sources import Source, engine_of, source_of
from .table import Row, RowError

DEFAULT_REQUESTS = 3000
"""Requests of a run that does not say how many it had."""
SERVED = 0.97
"""Share of the offered rate below which a run counts as saturated."""
FAILED = 0.5
"""Share of failed requests from which a run says nothing."""
_SHARED = re.compile(r"(\d+) sys prompts x (\d+) users, sys (\d+) \+ question (\d+) tok")
_STAGES = re.compile(r"(\d+)s@([\d.]+)")
_CAPPED = re.compile(r"capped at (\d+) in flight")


def served_run(row: Row, table: Path, part: str = "", note: str = "") -> ServedRun:
    """Return a row as a run to play.

    Parameters
    ----------
    row : the row
    table : its file; ``requests_file`` and time series lie beside it
    part, note : what the split says of it

    Raises
    ------
    RowError : one line that says why it cannot be played
    """
    source = source_of(row)
    _refuse(row)
    engine, taken = engine_of(row, source)
    weights = row.text("weight_dtype")
    model = model_of(row.text("model"))
    load, notes, skip_first = _load(row, table, source)
    scenario = scenario_of(
        {
            "name": row.text("run_id"),
            "device": device_of(row.text("gpu")),
            "model": model,
            "engine": engine,
            "parallelism": groups(*(row.count(name) for name in ("tp", "pp", "dp", "ep"))),
            "quantization": {
                "weights": weights_of(weights, model),
                "kv_cache": row.text("kv_dtype") or source.kv_dtype(row, weights),
            },
            "scheduler": {
                **source.server.get(row.text("engine"), {}),
                **_given(row, "max_num_seqs", "max_num_batched_tokens"),
            },
            "kv_cache": {
                **_given(row, "max_model_len", "block_size"),
                **_renamed(row, kv_blocks="num_gpu_blocks_override", gpu_mem_util="gpu_memory_utilization"),
                **_prefix_caching(row),
            },
            "workload": load | {"sampling": source.sampling(row)},
        }
    )
    measured, derived = _measured(row, source)
    if not measured:
        raise RowError("nothing was measured that can be compared")
    peak = _kv_peak(table.parent / "timeseries" / f"{row.text('run_id')}.csv")
    capped = _CAPPED.search(row.text("arrival"))
    return ServedRun(
        label_of(row, part),
        scenario,
        measured if peak is None else measured | {"kv_peak": peak},
        tpot_derived=derived,
        client_overhead_s=source.client_overhead_s,
        skip_first=skip_first,
        saturated=_saturated(row, note),
        concurrency=int(capped[1]) if capped else None,
        intended=bool(capped),
        taken_up=source.taken_up and bool(row.text("requests_file")),
        notes=(*(f"{source.id}: {said}" for said in source.says), *([taken] if taken else []), *notes),
    )


def label_of(row: Row, part: str = "", kind: str = "runs") -> Label:
    """Return what a row is called and grouped by."""
    version = re.match(r"[^\s(]*", row.text("engine_version"))
    engine = (
        f"{row.text('engine')} {version[0] if version and re.match('v?[0-9]', version[0]) else ''}".strip()
    )
    return Label(row.text("run_id"), row.text("gpu"), row.text("model"), engine, part, kind)


def _refuse(row: Row) -> None:
    notes = row.text("notes")
    if "stage -1" in notes:
        raise RowError("a sum of stages that stand on their own")
    if re.search(r"KV offload to CPU on", notes):
        raise RowError("the server offloaded KV to CPU, and the row does not say to how much memory")
    if re.search(r"speculative|\bMTP\b|eagle", notes, re.IGNORECASE):
        raise RowError("speculative decoding is not built yet")
    failed, asked = row.number("n_failed") or 0.0, row.number("n_requests")
    if asked and failed > FAILED * asked:
        raise RowError(f"{failed / asked:.0%} of its requests failed")


def _load(row: Row, table: Path, source: Source) -> tuple[dict[str, Any], list[str], int]:
    """Return the workload section, what was assumed, and the requests at the start to leave out."""
    file, law = row.text("requests_file"), row.text("arrival")
    if file:
        return {"trace": {"path": str(beside(table, file))}}, ["arrivals and lengths replayed"], 0
    count = row.count("n_requests", 0)
    prompt, answer = row.positive("isl_mean") * source.prompt_factor, row.positive("osl_mean")
    load: dict[str, Any] = {"input_tokens": round(prompt), "output_tokens": round(answer)}
    if law == "burst" or not row.number("request_rate_rps"):
        users = row.count("concurrency", 0) or count or DEFAULT_REQUESTS
        load |= {"arrivals": {"kind": "closed_loop", "concurrency": users}, "requests": count or users}
        return load, [] if count else [f"number of requests not stated: {DEFAULT_REQUESTS}"], 0
    rate = row.positive("request_rate_rps")
    kind = "constant" if law == "constant" else "poisson"
    kind = source.constant_is if kind == "constant" else kind
    count = count or _stage_requests(row, rate) or DEFAULT_REQUESTS
    load |= {"arrivals": {"kind": kind, "rate_per_s": rate}, "requests": count}
    sessions, question = _shared(row, prompt)
    if sessions is None:
        return load, [], 0
    load |= {"sessions": sessions, "input_tokens": question}
    warm = sessions["groups"] * sessions["prompts_per_group"] if _stage(row) > 0 else 0
    return load, ["whole prompts repeat"], min(warm, count // 2)


def _shared(row: Row, prompt: float) -> tuple[dict[str, Any] | None, int]:
    """Return the ``sessions`` section of a load whose description names its system prompts, and a question's length."""
    found = _SHARED.search(row.text("workload"))
    if not found:
        return None, 0
    prompts, users, system, _ = map(int, found.groups())
    section = {"groups": prompts, "prompts_per_group": users, "system_prompt_tokens": system}
    return section, max(round(prompt) - system, 1)


def _stage(row: Row) -> int:
    found = re.search(r"-s(\d+)$", row.text("run_id"))
    return int(found[1]) if found else 0


def _stage_requests(row: Row, rate: float) -> int:
    """Return how many requests a stage had, by the description's ``600s@8,600s@20``."""
    for seconds, stated in _STAGES.findall(row.text("workload")):
        if float(stated) == rate:
            return round(float(seconds) * rate)
    return 0


def _given(row: Row, *columns: str) -> dict[str, int]:
    return {column: row.count(column) for column in columns if row.number(column)}


def _renamed(row: Row, **columns: str) -> dict[str, float]:
    values = {ours: row.number(theirs) for theirs, ours in columns.items()}
    return {
        ours: int(value) if value == int(value) and value > 1 else value
        for ours, value in values.items()
        if value
    }


def _prefix_caching(row: Row) -> dict[str, bool]:
    stated = row.text("prefix_caching").lower()
    if stated.startswith(("on", "true")):
        return {"enable_prefix_caching": True}
    return {"enable_prefix_caching": False} if stated.startswith(("off", "false")) else {}


def _measured(row: Row, source: Source) -> tuple[dict[str, float], bool]:
    """Return what was measured, times in seconds, and whether the mean TPOT is derived."""
    found: dict[str, float] = {}
    for latency in LATENCIES:
        for statistic in STATISTICS:
            column = f"{latency}_{statistic}_ms"
            value = None if column in source.ignore else row.number(column)
            if value is not None and value > 0:
                found[f"{latency}_{statistic}"] = value / 1e3
    derived = row.number("tpot_derived_mean_ms")
    use_derived = "tpot_mean" not in found and derived is not None and derived > 0
    if use_derived and derived is not None:
        found["tpot_mean"] = derived / 1e3
    columns = {"req_per_s": "requests_per_s", "out_tok_per_s": "output_tokens_per_s"}
    for column, name in (columns | {"preemptions": "preemptions"}).items():
        value = row.number(column)
        if value is not None:
            found[name] = value
    return found, use_derived


def _saturated(row: Row, note: str) -> str:
    rate, served = row.number("request_rate_rps"), row.number("req_per_s")
    if "saturated" in note:
        return note
    if _CAPPED.search(row.text("arrival")):
        return "its client kept as many requests in flight as it may"
    if rate and served and served < SERVED * rate:
        return f"{rate:g} requests/s came, {served:g}/s were served"
    if row.text("arrival") == "burst" and not any(row.number(f"{each}_mean_ms") for each in LATENCIES):
        return "all requests came at once"
    return ""


def _kv_peak(path: Path) -> float | None:
    """Return the highest share of the KV pool in use that a time series holds; None without one."""
    if not path.is_file():
        return None
    with path.open(encoding="utf-8") as file:
        values: list[Mapping[str, str]] = list(csv.DictReader(file))
    shares = [float(row["kv_cache_pct"]) / 100 for row in values if row.get("kv_cache_pct")]
    return max(shares) if shares and max(shares) > 0 else None
