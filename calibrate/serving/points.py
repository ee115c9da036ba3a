"""Rows of TTFT/TPOT points (the schema of ``inferencex_points.csv``) as closed loops to play."""

from __future__ import annotations

from typing import Any

from ...hwmodels.model import load_model
from .run import ServedRun, device_of, groups, model_of, scenario_of, weights_of
from .runs import label_of
from .sources import Source, engine_of, source_of
from .table import Row, RowError

ROUNDS = 10
"""Requests of each user, as the benchmark's own setting has it."""
MOST_REQUESTS = 2560
"""Most requests that are played of a point; beyond, users send fewer."""
FEWEST_ROUNDS = 3


def served_point(row: Row, part: str = "", note: str = "") -> ServedRun:
    """Return a point as a closed loop at its concurrency.

    Its throughput is not in the file; by Little's law it is concurrency over the time a request takes,
    TTFT + (answer - 1) TPOT, on both sides of the comparison.

    Parameters
    ----------
    row : the row
    part, note : what the split says of it

    Raises
    ------
    RowError : one line that says why it cannot be played
    """
    del note
    source = source_of(row)
    if row.text("mode") == "disagg":
        raise RowError("prefill and decode on different GPUs: pools are not read from this table yet")
    if "speculative" in row.text("notes").lower():
        raise RowError("speculative decoding is not built yet")
    engine, taken = engine_of(row, source)
    model = model_of(row.text("model"))
    users = row.count("concurrency", 0)
    if not users:
        raise RowError("no concurrency stated")
    tp, gpus = row.count("tp_size"), row.count("n_gpus")
    precision = row.text("precision") or row.text("gemm_quant_mode")
    weights = weights_of(precision, model)
    load, answer = _load(row, users, source)
    scenario = scenario_of(
        {
            "name": row.text("run_id"),
            "device": device_of(row.text("gpu")),
            "model": model,
            "engine": engine,
            "parallelism": groups(
                tp, row.count("pp_size"), row.count("attention_dp_size"), row.count("moe_ep_size")
            ),
            "quantization": {"weights": weights, "kv_cache": source.kv_dtype(row, precision)},
            "scheduler": dict(source.server.get(row.text("engine"), {})),
            "kv_cache": {"enable_prefix_caching": False},
            "workload": load,
        }
    )
    measured = {f"{name}_mean": row.positive(f"{name}_ms") / 1e3 for name in ("ttft", "tpot")}
    stay_s = measured["ttft_mean"] + (answer - 1) * measured["tpot_mean"]
    measured["output_tokens_per_s"] = users * answer / stay_s
    notes = [taken] if taken else []
    if gpus != tp:
        notes.append(f"{gpus} GPUs stated for a group of {tp}")
    return ServedRun(
        label_of(row, part, "points"),
        scenario,
        measured,
        client_overhead_s=source.client_overhead_s,
        concurrency=users,
        unstated_spread=source.spread(row, experts=load_model(model).has_experts),
        notes=(*(f"{source.id}: {said}" for said in source.says), *notes),
    )


def _load(row: Row, users: int, source: Source) -> tuple[dict[str, Any], float]:
    """Return the workload section, and the mean length of an answer [tokens]."""
    prompt, answer = row.count("isl", 0), row.count("osl", 0)
    if prompt < 1 or answer < 2:
        raise RowError("needs isl of 1 token or more and osl of 2 or more")
    rounds = max(min(ROUNDS, MOST_REQUESTS // users), FEWEST_ROUNDS)
    load: dict[str, Any] = {
        "arrivals": {
            "kind": "closed_loop",
            "concurrency": users,
            "think_time_s": source.jitter_s,
            "think_time": "exponential" if source.jitter_s else "constant",
        },
        "requests": users * rounds,
        "input_tokens": _lengths(prompt, source.length_range),
        "output_tokens": _lengths(answer, source.length_range),
    }
    mean = answer if source.length_range is None else answer * (1 + source.length_range) / 2
    return load, mean


def _lengths(stated: int, shortest: float | None) -> Any:
    if shortest is None:
        return stated
    return {"kind": "uniform", "low": max(round(stated * shortest), 1), "high": stated}
