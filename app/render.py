"""A run's summary as text: an aligned table for people, JSON and CSV for programs.

Everything here is a function of the summary alone, and never looks at the terminal, the clock or the locale:
the same summary gives the same bytes. Colour is added only where the caller asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

from ..sim.output.output import to_json
from .clustertext import handover_lines, replica_lines
from .latencytext import LATENCY_COLUMNS, LATENCY_ROWS, contention, latency_rows
from .steadytext import steady_state, window_table
from .text import (
    LABEL,
    NARROW,
    csv_of,
    dtype,
    gib,
    labelled,
    milliseconds,
    number,
    percent,
    table,
    text_of,
)

Summary = Mapping[str, Any]

SHARE_WORDS: Mapping[str, str] = {
    "hbm_weights": "HBM weights", "hbm_kv": "HBM KV", "hbm_activations": "HBM activations",
    "latency": "in-kernel latency",
}  # fmt: skip
LEVELS: Mapping[str, str] = {
    "measured": "measured on this device",
    "bridged": "measured on this device in other software, carried over by ratio",
    "prior": "starting values for this device, not calibrated",
    "transferred_same_arch": "taken over from a device of the same architecture",
    "transferred_cross_arch": "taken over from a device of another architecture",
}
MEMORY_ROWS: tuple[tuple[str, str], ...] = (
    ("weights_bytes", "weights"), ("activation_bytes", "activations"), ("reserve_bytes", "reserve"),
    ("kv_pool_bytes", "KV pool"),
)  # fmt: skip
INTERVALS: tuple[tuple[str, str], ...] = (
    ("TTFT", "latency.ttft_s.mean"), ("TTFT p99", "latency.ttft_s.p99"), ("TPOT", "latency.tpot_s.mean"),
    ("E2E", "latency.e2e_s.mean"), ("output tok/s", "throughput.output_tokens_per_s"),
)  # fmt: skip
UTILIZATION: tuple[str, ...] = (
    "mfu", "mbu", "mfu_wall", "mbu_wall", "gpu_util", "sm_active", "tensor_active", "dram_active",
)  # fmt: skip


def render(summary: Summary, form: str = "table", *, color: bool = False) -> str:
    """Return the summary as ``table``, ``json`` or ``csv``, with a final newline.

    Raises
    ------
    ValueError
        ``form`` is none of them.
    """
    if form == "json":
        return to_json(summary)
    if form == "csv":
        return render_csv([summary])
    if form == "table":
        return render_table(summary, color=color)
    raise ValueError(f"format {form!r}; allowed: table, json, csv")


def render_csv(summaries: Sequence[Summary]) -> str:
    """Return one row a run under dotted column names; unknown is empty, the scenario is only named."""
    return csv_of([dict(_flat(summary)) for summary in summaries])


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        path = prefix + key
        if path == "scenario":
            yield "scenario.name", (value or {}).get("name")
        elif isinstance(value, Mapping):
            yield from _flat(value, path + ".")
        elif isinstance(value, list):
            yield path, " | ".join(str(item) for item in value)
        else:
            yield path, value


def render_table(summary: Summary, *, color: bool = False) -> str:
    """Return the summary as aligned text: what ran, latencies, rates, where the time went, and the answer."""
    lines = [
        *labelled("", title_of(summary), strong=color),
        *_latency_table(summary),
        *window_table(summary),
        *labelled("steady state", steady_state(summary)),
        *labelled("requests", _requests(summary)),
        *labelled("throughput", _throughput(summary)),
        *labelled("replicas", replica_lines(summary)),
        *labelled("handovers", handover_lines(summary)),
        *labelled("SLO", _slo(summary)),
        *labelled("cost", _cost(summary)),
        *labelled("energy", _energy(summary)),
        *labelled("time spent", _shares(summary["time_share"])),
        *labelled("batch limit", _shares(summary["limiter"])),
        *labelled("utilization", _utilization(summary)),
        *labelled("memory", _memory(summary)),
        *labelled("KV pool", _kv(summary)),
        *labelled("KV tiers", _tiers(summary)),
        *labelled("KV swap", _swap(summary)),
        *labelled("speculation", _speculation(summary)),
        *labelled("contention", contention(summary)),
        *_colocated(summary),
        *labelled("answer", str(summary["verdict"]["sentence"]), strong=color),
        *labelled("prediction", _prediction(summary)),
        *(line for note in notes(summary) for line in labelled("note", note)),
    ]
    return text_of(lines)


def title_of(summary: Summary) -> str:
    """Say what ran, for how long, on what load."""
    scenario: Mapping[str, Any] = summary["scenario"] or {}
    provenance, rates = summary["provenance"], summary["throughput"]
    ran = [_hardware(scenario, provenance), provenance["model"] or scenario.get("model"), _formats(summary)]
    ran += [provenance["engine"], (scenario.get("scheduler") or {}).get("name")]
    load = f"{summary['requests']['submitted']:,} requests"
    if rates["duration_s"] is not None:
        load += f" in {number(rates['duration_s'])} s"
    if provenance["seed"] is not None:
        load += f" (seed {provenance['seed']})"
    return " · ".join(str(part) for part in [*ran, load] if part)


def _hardware(scenario: Mapping[str, Any], provenance: Mapping[str, Any]) -> str:
    """Return the device, how many of them, and whether it is a what-if."""
    parallel = scenario.get("parallelism") or {}
    ranks = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
    gpus = prod(parallel.get(name, 1) for name in ranks)
    asked = scenario.get("device")
    changes = [f"{k} {v}" for k, v in asked.items() if k != "base"] if isinstance(asked, Mapping) else []
    what_if = f" with {', '.join(changes)}" if changes else ""
    return (f"{gpus} x " if gpus > 1 else "") + f"{provenance['device'] or asked or ''}{what_if}"


def _formats(summary: Summary) -> str:
    """Say in which formats weights and KV cache are kept, where that is known."""
    asked = (summary["scenario"] or {}).get("quantization") or {}
    memory = summary["memory"]
    words = {
        "weights": (memory.get("weight_format"), "weights"),
        "kv_cache": (memory.get("kv_cache_dtype"), "KV"),
    }
    known = {word: taken or asked.get(key) for key, (taken, word) in words.items()}
    return ", ".join(f"{dtype(name)} {word}" for word, name in known.items() if name)


def _latency_table(summary: Summary) -> list[str]:
    """Return the latencies [ms], one row a metric. Without a steady state the means are not quoted."""
    if all(row["max"] is None for row in summary["latency"].values()):
        return []
    thresholds = _thresholds(summary)
    columns = [*LATENCY_COLUMNS, *(["SLO"] if thresholds else [])]
    rows = latency_rows(summary["latency"], quotes_means(summary))
    if thresholds:
        for (_, metric), row in zip(LATENCY_ROWS, rows, strict=True):
            row.append(thresholds.get(metric, ""))
    right = range(1, len(columns) + 1)
    return table(["latency [ms]", *columns], rows, right=right, widths=[LABEL - 1, *[9] * len(columns)])


def _colocated(summary: Summary) -> list[str]:
    """Return the latencies [ms] of the second model on the device, and what else is known of it."""
    found: Mapping[str, Any] = summary.get("colocated") or {}
    if not found:
        return []
    rows = latency_rows(found["latency"], quotes_means(summary))
    head = f"{found['model']} [ms]"
    label = max(LABEL - 1, len(head))
    return [
        "",
        *table(
            [head, *LATENCY_COLUMNS],
            rows,
            right=range(1, len(LATENCY_COLUMNS) + 1),
            widths=[label, *[9] * len(LATENCY_COLUMNS)],
        ),
        *labelled("requests", _requests(found)),
        *labelled("throughput", _throughput(found)),
        *labelled("time spent", _shares(found["time_share"])),
        *labelled("memory", _memory(found)),
        *labelled("contention", contention(found)),
        "",
    ]


def _thresholds(summary: Summary) -> dict[str, str]:
    """Return metric -> threshold [ms] of the SLO class, where there is exactly one."""
    classes = ((summary["scenario"] or {}).get("slo") or {}).get("classes") or {}
    if len(classes) != 1:
        return {}
    limits: Mapping[str, Any] = next(iter(classes.values())) or {}
    return {name: milliseconds(limit) for name, limit in limits.items() if isinstance(limit, int | float)}


def _requests(summary: Summary) -> list[str]:
    counts = summary["requests"]
    said = [f"{counts['completed']:,} of {counts['submitted']:,} completed"]
    if counts["rejected"]:
        reasons = ", ".join(
            f"{n:,} {name if ' ' in name else name.replace('_', ' ')}"
            for name, n in counts["rejected_by_reason"].items()
        )
        said.append(f"{counts['rejected']:,} rejected ({reasons})")
    return [*said, *(f"{counts[name]:,} {name}" for name in ("aborted", "preemptions"))]


def _throughput(summary: Summary) -> list[str]:
    words = {
        "requests_per_s": "requests/s",
        "input_tokens_per_s": "input tok/s",
        "output_tokens_per_s": "output tok/s",
        "output_tokens_per_s_per_gpu": "output tok/s/GPU",
    }
    return _figures(summary["throughput"], words, number, before=False)


def _slo(summary: Summary) -> list[str]:
    slo = summary["slo"]
    if slo["attainment"] is None:
        return []
    verdict = {True: "met: ", False: "MISSED: ", None: ""}[slo["met"]]
    said = [f"{verdict}{percent(slo['attainment'])} of the requests within their thresholds"]
    if slo["goodput_per_s"] is not None:
        said.append(f"goodput {number(slo['goodput_per_s'])} requests/s")
    return said


def _cost(summary: Summary) -> list[str]:
    words = {
        "usd_per_million_output_tokens": "USD per M output tokens",
        "usd_per_million_tokens": "USD per M input + output tokens",
        "usd_per_gpu_hour": "USD per GPU hour",
    }
    if summary["cost"]["usd_per_million_tokens"] is None:
        return []
    return _figures(summary["cost"], words, number, before=False)


def _energy(summary: Summary) -> list[str]:
    """Say what was drawn, and how far the power of this board is known."""
    energy = summary["energy"]
    if energy["joule_per_output_token"] is None:
        return []
    words = {"joule_per_output_token": "J per output token", "mean_watts": "W"}
    spread = f"± {energy['spread'] * 100:.0f} %: {energy['source'].split(',')[0]}"
    return [*_figures(energy, words, number, before=False), spread]


def _shares(shares: Mapping[str, float | None]) -> list[str]:
    """Return the shares that round to something, largest first."""
    known = {name: share for name, share in shares.items() if share and share >= 0.0005}
    ordered = sorted(known, key=lambda name: -known[name])
    words = {name: SHARE_WORDS.get(name, name.replace("_", " ")) for name in ordered}
    return _figures(known, words, percent)


def _utilization(summary: Summary) -> list[str]:
    return _figures(summary["utilization"], dict(zip(UTILIZATION, UTILIZATION, strict=True)), percent)


def _memory(summary: Summary) -> list[str]:
    memory = summary["memory"]
    said = _figures(memory, dict(MEMORY_ROWS), lambda size: f"{gib(size)} GiB")
    words = {"num_gpu_blocks": "blocks", "kv_capacity_tokens": "tokens"}
    return said + _figures(memory, words, "{:,}".format, before=False)


def _kv(summary: Summary) -> list[str]:
    words = {
        "peak_usage": "peak",
        "mean_usage": "mean",
        "prefix_hit_rate": "prefix hits",
        "internal_fragmentation": "internal fragmentation",
        "external_fragmentation": "external fragmentation",
    }
    if summary["kv"].get("waste_reserved"):
        words |= {"waste": "wasted", "waste_reserved": "for later", "waste_internal": "for nothing"}
        words |= {"waste_external": "scattered"}
    return _figures(summary["kv"], words, percent)


def _speculation(summary: Summary) -> list[str]:
    """Say what drafting brought and what it cost; nothing where nothing was drafted."""
    found: Mapping[str, Any] = summary.get("speculative") or {}
    if not found.get("num_drafts"):
        return []
    accepted = found["num_accepted_tokens"] / found["num_draft_tokens"]
    parts = [f"{number(found['mean_acceptance_length'])} tokens a step", f"accepted {percent(accepted)}"]
    return [*parts, f"drafting {percent(found['draft_time_share'])} of busy time"]


def _tiers(summary: Summary) -> list[str]:
    """Say what share of the prompt tokens each level had, and what went in and out of it."""
    said: list[str] = []
    for kind, tier in (summary["kv"].get("tiers") or {}).items():
        found = "" if tier["hit_rate"] is None else f"{percent(tier['hit_rate'])} of prompt tokens"
        if "read_bytes" in tier:
            found += f" (read {gib(tier['read_bytes'])}, written {gib(tier['written_bytes'])} GiB, peak "
            found += f"{percent(tier['peak_usage'])} of {gib(tier['capacity_bytes'])} GiB)"
        said.append(f"{'HBM' if kind == 'hbm' else kind} {found}".strip())
    return said


def _swap(summary: Summary) -> list[str]:
    swap = summary["kv"].get("swap") or {}
    if not swap:
        return []
    said = [f"out {gib(swap['out_bytes'])} GiB", f"in {gib(swap['in_bytes'])} GiB"]
    said.append(f"peak {percent(swap['peak_usage'])} of {gib(swap['capacity_bytes'])} GiB")
    refused = swap["recomputed_for_lack_of_room"]
    return [*said, *([f"{refused:,} preempted requests found no room"] if refused else [])]


def _figures(
    values: Mapping[str, Any], words: Mapping[str, str], write: Callable[[Any], str], *, before: bool = True
) -> list[str]:
    """Return the known ones of some figures, each with its word before or after it."""
    known = [(word, write(values[name])) for name, word in words.items() if values.get(name) is not None]
    return [f"{word} {figure}" if before else f"{figure} {word}" for word, figure in known]


def _prediction(summary: Summary) -> str:
    """Say how sure the figures are."""
    confidence = summary["confidence"]
    level: str | None = confidence["level"]
    told = LEVELS.get(level or "")
    origin = f"{level}: {told}" if told else f"parameters {level or 'of unstated origin'}"
    if level and (less := _less_known(level, confidence.get("lanes", {}))):
        origin = less
    if not confidence["interval"]:
        return f"{origin}; --draws 32 adds intervals"
    quoted = quotes_means(summary)
    shown = [(label, metric) for label, metric in INTERVALS if quoted or not metric.endswith(".mean")]
    spreads = [(label, _half_width(summary, metric)) for label, metric in shown]
    spans = [f"{label} ± {spread}".replace(" ", NARROW) for label, spread in spreads if spread]
    return f"{origin}; {', '.join(spans)} (90{NARROW}%, {confidence['draws']}{NARROW}draws)"


def _less_known(level: str, lanes: Mapping[str, str]) -> str:
    """Say which kernels alone are known so little; nothing where all are."""
    least = [family.replace("_", " ") for family, known in lanes.items() if known == level]
    rest = {known for known in lanes.values() if known != level}
    if not rest:
        return ""
    best = min(rest, key=list(LEVELS).index)
    return f"{LEVELS[best]}; {', '.join(least)}: {LEVELS.get(level, level)}"


def _half_width(summary: Summary, metric: str) -> str | None:
    """Return half the width of a metric's interval over its value; None where either is unknown or 0."""
    ends: Sequence[float] | None = summary["confidence"]["interval"].get(metric)
    value: Any = summary
    for key in metric.split("."):
        value = value[key]
    return percent((ends[1] - ends[0]) / 2 / value) if ends is not None and value else None


def notes(summary: Summary) -> list[str]:
    """Return the warnings about the run itself; why a figure is unknown is only in the JSON."""
    said = [note for note in summary["confidence"]["warnings"] if " is null: " not in note]
    return [note for note in said if not note.startswith("latency is of this run")]


def quotes_means(summary: Summary) -> bool:
    """Tell whether the run had a steady state, or none to have: else its mean latencies are not quoted."""
    return summary["verdict"].get("stability") in ("steady", None)
