"""Counts, rates, shares and costs of a run: pure functions of its record, from exact whole numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..books.record import CAUSES, LIMITERS, RunRecord
from ..engine.request import Status
from .figures import NO_COMPLETED, NS_PER_S, Figure, Figures, Unknown
from .histogram import exact_sum
from .latency import completed, spans_ns
from .slo import met_slo

WASTE: tuple[str, ...] = ("waste", "waste_reserved", "waste_internal", "waste_external")


def request_counts(record: RunRecord) -> dict[str, Any]:
    """Return how many requests were submitted, and how each ended."""
    reason_codes = record.requests["reject_reason"][record.with_status(Status.REJECTED)]
    by_reason = {name: int((reason_codes == code).sum()) for code, name in enumerate(record.reject_reasons)}
    unnamed = int(reason_codes.size) - sum(by_reason.values())
    if unnamed:
        by_reason["unnamed"] = unnamed
    return {
        "submitted": record.n_requests,
        "completed": int(completed(record).sum()),
        "rejected": int(reason_codes.size),
        "aborted": int(record.with_status(Status.ABORTED).sum()),
        "preemptions": exact_sum(record.requests["num_preemptions"].astype(np.int64)),
        **({} if record.requeued is None else {"requeued": record.requeued}),
        "rejected_by_reason": {name: n for name, n in by_reason.items() if n},
    }


def token_counts(record: RunRecord) -> tuple[int, int]:
    """Return input and output tokens of completed requests [tokens]."""
    done = completed(record)
    return exact_sum(record.requests["input_tokens"][done]), exact_sum(record.requests["output_tokens"][done])


def throughput(record: RunRecord) -> Figures:
    """Return what was completed per second of the run's duration, first arrival to last token."""
    duration_ns = record.end_ns - record.start_ns
    names = ("requests_per_s", "input_tokens_per_s", "output_tokens_per_s", "output_tokens_per_s_per_gpu")
    if duration_ns <= 0:
        return {name: Unknown("no token was delivered") for name in (*names, "duration_s")}
    inputs, outputs = token_counts(record)
    values = (int(completed(record).sum()), inputs, outputs, outputs / record.setup.paid_gpus)
    figures: Figures = {
        name: value * NS_PER_S / duration_ns for name, value in zip(names, values, strict=True)
    }
    return figures | {"duration_s": duration_ns / NS_PER_S}


def time_share(record: RunRecord) -> Figures:
    """Return the share of all replicas' wall time by cause; the shares sum to 1."""
    if record.wall_ns <= 0:
        return dict.fromkeys(CAUSES, Unknown("no time passed"))
    return {cause: int(record.causes_ns.get(cause, 0)) / record.wall_ns for cause in CAUSES}


def limiter_share(record: RunRecord) -> Figures:
    """Return the share of busy time by what kept the batch from being larger; the shares sum to 1."""
    total = sum(int(record.limiter_ns.get(name, 0)) for name in LIMITERS)
    if total <= 0:
        return dict.fromkeys(LIMITERS, Unknown("no step ran"))
    return {name: int(record.limiter_ns.get(name, 0)) / total for name in LIMITERS}


def mean_running(record: RunRecord) -> float | None:
    """Return how many requests were in service on average while a replica was busy; None if it never was.

    Approximation: time a preempted request spends back in the queue counts as service.
    """
    served = completed(record) & (record.requests["first_scheduled_ns"] >= 0)
    if record.busy_ns <= 0:
        return None
    return exact_sum(spans_ns(record, "first_scheduled_ns", "last_token_ns", served)) / record.busy_ns


def utilization(record: RunRecord) -> Figures:
    """Return model FLOP and bandwidth utilisation, and what monitoring tools would show.

    ``mfu`` and ``mbu`` are over busy time, ``*_wall`` and the monitors' figures over wall time.
    """
    busy_s, wall_s = record.busy_ns / NS_PER_S, record.wall_ns / NS_PER_S
    flop_s = record.work.get("useful_flop_seconds")
    moved, bandwidth = record.work.get("useful_hbm_bytes"), record.setup.hbm_bandwidth
    read_s = moved / bandwidth if moved is not None and bandwidth else record.work.get("useful_hbm_seconds")
    figures: Figures = {
        "mfu": _ratio(flop_s, busy_s, "useful FLOP were not counted"),
        "mbu": _ratio(read_s, busy_s, "useful HBM bytes or the datasheet's bandwidth are not known"),
        "mfu_wall": _ratio(flop_s, wall_s, "useful FLOP were not counted"),
        "mbu_wall": _ratio(read_s, wall_s, "useful HBM bytes or the datasheet's bandwidth are not known"),
    }
    shown = {"gpu_util": "kernel_busy_s", "sm_active": "sm_active_s", "tensor_active": "tensor_active_s"}
    for name, column in (shown | {"dram_active": "dram_active_s"}).items():
        figures[name] = _ratio(record.work.get(column), wall_s, "the step model does not say yet")
    return figures | dict(record.monitored)


def _ratio(part: float | None, whole: float, reason: str) -> Figure:
    if part is None:
        return Unknown(reason)
    return float(part) / whole if whole > 0 else Unknown("no time passed")


def kv(record: RunRecord) -> Figures:
    """Return how full the KV pool was, what fragmentation cost, and what the prefix cache found."""
    figures: Figures = {}
    for name in ("peak_usage", "mean_usage", "internal_fragmentation", "external_fragmentation", *WASTE):
        value = record.kv.get(name)
        figures[name] = Unknown("this allocator does not account it") if value is None else float(value)
    queried, hit = record.kv.get("prefix_queried_tokens"), record.kv.get("prefix_hit_tokens")
    found = hit / queried if hit is not None and queried else None
    figures["prefix_hit_rate"] = Unknown("no prefix was looked up") if found is None else found
    preemptions = record.kv.get("preemptions")
    figures["preemptions"] = (
        request_counts(record)["preemptions"] if preemptions is None else int(preemptions)
    )
    return figures


def cost(record: RunRecord) -> Figures:
    """Return the price of all GPUs over the run's duration, by million tokens and by completed request [USD].

    Beside it stands the price of one GPU that it rests on [USD/h].
    """
    names = ("usd_per_million_output_tokens", "usd_per_million_tokens", "usd_per_request", "usd_total")
    price = record.setup.usd_per_gpu_hour
    if price is None:
        unpriced = Unknown("the device has no list price; set price.usd_per_gpu_hour")
        return dict.fromkeys((*names, "usd_per_gpu_hour"), unpriced)
    inputs, outputs = token_counts(record)
    if outputs == 0 or record.end_ns <= record.start_ns:
        return {**dict.fromkeys(names, Unknown(NO_COMPLETED)), "usd_per_gpu_hour": price}
    usd = price * record.setup.paid_gpus * record.duration_s / 3600
    requests = int(completed(record).sum())
    figures = (usd * 1e6 / outputs, usd * 1e6 / (inputs + outputs), usd / requests, usd)
    return {**dict(zip(names, figures, strict=True)), "usd_per_gpu_hour": price}


def energy(record: RunRecord) -> Figures:
    """Return what all GPUs drew while their replicas existed, by token and by request of those completed.

    ``mean_watts`` is of all GPUs together. ``level`` says whether the power of this very board was measured, ``spread``
    is the half width of the 90 % interval of its mean power, relative.
    """
    names = ("joule_per_output_token", "joule_per_token", "joule_per_request", "mean_watts")
    power, drawn = record.setup.power, record.work.get("power_above_idle_s")
    if power is None or drawn is None:
        unknown = Unknown("the board's power limit is not known")
        return dict.fromkeys((*names, "level", "spread", "source", "joule_total"), unknown)
    known: Figures = {"level": power.level, "spread": power.spread, "source": power.source}
    wall_s = record.wall_ns / NS_PER_S
    if wall_s <= 0:
        return {**dict.fromkeys((*names, "joule_total"), Unknown("no time passed")), **known}
    joule = record.work.get("joule_total", record.setup.gpus_per_replica * power.joule(wall_s, drawn))
    known["joule_total"] = joule
    watts = (
        joule / (wall_s / max(record.setup.replicas, 1))
        if record.setup.mean_gpus is None
        else (joule / record.duration_s)
    )
    inputs, outputs = token_counts(record)
    requests = int(completed(record).sum())
    if outputs == 0:
        return {**dict.fromkeys(names, Unknown(NO_COMPLETED)), **known, "mean_watts": watts}
    each = (joule / outputs, joule / (inputs + outputs), joule / requests, watts)
    return {**dict(zip(names, each, strict=True)), **known}


def classes(record: RunRecord) -> dict[str, Figures]:
    """Return each SLO class's share of a run with several: requests, SLO attainment, what one request cost and drew.

    Money and energy are shared out by the time that requests spent in service: those that run beside each other pay
    alike.
    """
    if len(record.slo_classes) < 2:
        return {}
    served = completed(record)
    stay = np.where(served, record.requests["last_token_ns"] - record.requests["first_scheduled_ns"], 0)
    whole, met = exact_sum(stay), met_slo(record)
    totals = {
        "usd_per_request": (cost(record).get("usd_total"), "the device has no list price"),
        "joule_per_request": (energy(record).get("joule_total"), "the board's power limit is not known"),
    }
    found: dict[str, Figures] = {}
    for code, name in enumerate(record.slo_classes):
        members = record.requests["slo_class"] == code
        count, done = int(members.sum()), int((members & served).sum())
        row: Figures = {"requests": count, "completed": done}
        if isinstance(met, Unknown):
            row["attainment"] = met
        else:
            row["attainment"] = int((met & members).sum()) / count if count else Unknown("no request of it")
        share = exact_sum(stay[members]) / whole if whole else 0.0
        for figure, (total, reason) in totals.items():
            row[figure] = Unknown(reason if done else NO_COMPLETED)
            if isinstance(total, float) and done:
                row[figure] = total * share / done
        found[name] = row
    return found


def simulation(record: RunRecord) -> Mapping[str, Figure]:
    """Return how much work the simulator did."""
    names = ("steps", "jumps", "events")
    return {name: record.counts.get(name, Unknown("not counted by this recorder")) for name in names}
