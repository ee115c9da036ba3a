"""A run's summary as text: an aligned table for people, JSON and CSV for programs.

Everything here is a function of the summary alone, and never looks at the terminal, the clock or the locale:
the same summary gives the same bytes. Colour is added only where the caller asks for it.
"""

from __future__ import annotations

import csv
import io
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..sim.output import to_json

Summary = Mapping[str, Any]

WIDTH = 110
LABEL = 15
DASH = "-"
LATENCY_ROWS: tuple[tuple[str, str], ...] = (
    ("queue", "queue_s"), ("TTFT", "ttft_s"), ("TTFT at client", "client_ttft_s"), ("TPOT", "tpot_s"),
    ("ITL", "itl_s"), ("E2E", "e2e_s"),
)  # fmt: skip
LATENCY_COLUMNS: tuple[str, ...] = ("mean", "p50", "p90", "p95", "p99", "max")
SHARE_WORDS: Mapping[str, str] = {
    "hbm_weights": "HBM weights", "hbm_kv": "HBM KV", "hbm_activations": "HBM activations",
    "latency": "in-kernel latency",
}  # fmt: skip
MEMORY_ROWS: tuple[tuple[str, str], ...] = (
    ("weights", "weights_bytes"), ("activations", "activation_bytes"), ("reserve", "reserve_bytes"),
    ("KV pool", "kv_pool_bytes"),
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
    rows = [dict(_flat(summary)) for summary in summaries]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


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
        *_wrapped("", _title(summary), strong=color),
        *_latency_table(summary, color=color),
        *_wrapped("requests", _requests(summary)),
        *_wrapped("throughput", _throughput(summary)),
        *_wrapped("SLO", _slo(summary)),
        *_wrapped("cost", _cost(summary)),
        *_wrapped("time spent", _shares(summary["time_share"])),
        *_wrapped("batch limit", _shares(summary["limiter"])),
        *_wrapped("utilization", _utilization(summary)),
        *_wrapped("memory", _memory(summary)),
        *_wrapped("KV pool", _kv(summary)),
        *_wrapped("answer", str(summary["verdict"]["sentence"]), strong=color),
        *_wrapped("prediction", _prediction(summary)),
        *(line for note in _notes(summary) for line in _wrapped("note", note)),
    ]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _wrapped(label: str, text: str, *, strong: bool = False) -> list[str]:
    """Return ``text`` in lines under a label; nothing where there is nothing to say."""
    if not text:
        return []
    indent = " " * LABEL if label else ""
    lines = textwrap.wrap(text, WIDTH, initial_indent=label.ljust(len(indent)), subsequent_indent=indent)
    return [f"\x1b[1m{line}\x1b[0m" if strong else line for line in lines]


def _title(summary: Summary) -> str:
    """Say what ran, for how long, on what load."""
    scenario: Mapping[str, Any] = summary["scenario"] or {}
    provenance, rates = summary["provenance"], summary["throughput"]
    ran = [provenance["device"], provenance["model"] or scenario.get("model"), _formats(scenario)]
    ran += [provenance["engine"], (scenario.get("scheduler") or {}).get("name")]
    load = f"{summary['requests']['submitted']} requests"
    if rates["duration_s"] is not None:
        load += f" in {_number(rates['duration_s'])} s"
    if provenance["seed"] is not None:
        load += f" (seed {provenance['seed']})"
    return " · ".join(str(part) for part in [*ran, load] if part)


def _formats(scenario: Mapping[str, Any]) -> str:
    """Say in which formats weights and KV cache are kept, where the scenario says so."""
    quantization = scenario.get("quantization") or {}
    words = {"weights": "weights", "kv_cache": "KV"}
    return ", ".join(f"{quantization[key]} {word}" for key, word in words.items() if quantization.get(key))


def _latency_table(summary: Summary, *, color: bool) -> list[str]:
    """Return the latencies [ms], one row a metric. Without a steady state the means are not quoted."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    thresholds = _thresholds(summary)
    columns = [*LATENCY_COLUMNS, *(["SLO"] if thresholds else [])]
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 2, 0, 0))
    table.add_column(r"latency \[ms]", min_width=LABEL - 2, no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", min_width=8, no_wrap=True)
    quoted = summary["verdict"].get("stability") in ("steady", None)
    for label, metric in LATENCY_ROWS:
        row = summary["latency"][metric]
        cells = [
            DASH if name == "mean" and not quoted else _milliseconds(row[name]) for name in LATENCY_COLUMNS
        ]
        table.add_row(label, *cells, *([thresholds.get(metric, "")] if thresholds else []))
    console = Console(
        file=io.StringIO(), width=WIDTH, force_terminal=color, color_system="standard" if color else None,
        no_color=not color, highlight=False, legacy_windows=False, _environ={},
    )  # fmt: skip
    with console.capture() as captured:
        console.print(table)
    return captured.get().rstrip("\n").split("\n")


def _thresholds(summary: Summary) -> dict[str, str]:
    """Return metric -> threshold [ms] of the SLO class, where there is exactly one."""
    classes = ((summary["scenario"] or {}).get("slo") or {}).get("classes") or {}
    if len(classes) != 1:
        return {}
    limits: Mapping[str, Any] = next(iter(classes.values())) or {}
    return {name: _milliseconds(limit) for name, limit in limits.items() if isinstance(limit, int | float)}


def _requests(summary: Summary) -> str:
    counts = summary["requests"]
    said = [f"{counts['completed']} of {counts['submitted']} completed"]
    if counts["rejected"]:
        reasons = ", ".join(
            f"{n} {name.replace('_', ' ')}" for name, n in counts["rejected_by_reason"].items()
        )
        said.append(f"{counts['rejected']} rejected ({reasons})")
    said += [
        f"{counts[name]} {word}" for name, word in (("aborted", "aborted"), ("preemptions", "preemptions"))
    ]
    return "   ".join(said)


def _throughput(summary: Summary) -> str:
    rates = summary["throughput"]
    words = {
        "requests_per_s": "requests/s",
        "input_tokens_per_s": "input tok/s",
        "output_tokens_per_s": "output tok/s",
        "output_tokens_per_s_per_gpu": "output tok/s/GPU",
    }
    return "   ".join(
        f"{_number(rates[name])} {word}" for name, word in words.items() if rates[name] is not None
    )


def _slo(summary: Summary) -> str:
    slo = summary["slo"]
    if slo["attainment"] is None:
        return ""
    goodput = "" if slo["goodput_per_s"] is None else f"   goodput {_number(slo['goodput_per_s'])} requests/s"
    verdict = {True: "met: ", False: "MISSED: ", None: ""}[slo["met"]]
    return f"{verdict}{_percent(slo['attainment'])} of the requests within their thresholds{goodput}"


def _cost(summary: Summary) -> str:
    cost = summary["cost"]
    words = {
        "usd_per_million_output_tokens": "output tokens",
        "usd_per_million_tokens": "tokens, input and output",
    }
    return "   ".join(
        f"{_number(cost[n])} USD per million {w}" for n, w in words.items() if cost[n] is not None
    )


def _shares(shares: Mapping[str, float | None]) -> str:
    """Return the shares that round to something, largest first."""
    known = {name: share for name, share in shares.items() if share}
    ordered = sorted(known, key=lambda name: -known[name])
    return "   ".join(
        f"{SHARE_WORDS.get(name, name.replace('_', ' '))} {_percent(known[name])}"
        for name in ordered
        if known[name] >= 0.0005
    )


def _utilization(summary: Summary) -> str:
    figures = summary["utilization"]
    names = [name for name in UTILIZATION if figures[name] is not None]
    return "   ".join(f"{name} {_percent(figures[name])}" for name in names)


def _memory(summary: Summary) -> str:
    memory = summary["memory"]
    said = [f"{word} {memory[n] / 2**30:.2f} GiB" for word, n in MEMORY_ROWS if memory[n] is not None]
    if memory["num_gpu_blocks"] is not None:
        said.append(f"{memory['num_gpu_blocks']} blocks")
    if memory["kv_capacity_tokens"] is not None:
        said.append(f"{memory['kv_capacity_tokens']} tokens")
    return "   ".join(said)


def _kv(summary: Summary) -> str:
    kv = summary["kv"]
    words = {
        "peak_usage": "peak",
        "mean_usage": "mean",
        "prefix_hit_rate": "prefix hits",
        "internal_fragmentation": "internal fragmentation",
        "external_fragmentation": "external fragmentation",
    }
    return "   ".join(f"{word} {_percent(kv[name])}" for name, word in words.items() if kv[name] is not None)


def _prediction(summary: Summary) -> str:
    """Say how sure the figures are."""
    confidence = summary["confidence"]
    level = f"parameters {confidence['level']}" if confidence["level"] else "parameters of unstated origin"
    interval: Mapping[str, Sequence[float]] | None = confidence["interval"]
    if not interval:
        return f"{level}; no interval yet"
    spans = (f"{name} {_number(low)} to {_number(high)}" for name, (low, high) in interval.items())
    return f"{level}; {', '.join(spans)}"


def _notes(summary: Summary) -> list[str]:
    """Return the warnings about the run itself; why a figure is unknown is only in the JSON."""
    said = [note for note in summary["confidence"]["warnings"] if " is null: " not in note]
    return [note for note in said if not note.startswith("latency is of this run")]


def _milliseconds(seconds: float | None) -> str:
    return DASH if seconds is None else _number(seconds * 1000)


def _number(value: float) -> str:
    """Return four significant digits without an exponent.

    >>> _number(0.012345), _number(12.345), _number(123456.7)
    ('0.01235', '12.35', '123457')
    """
    if value == 0:
        return "0"
    magnitude = len(str(int(abs(value)))) if abs(value) >= 1 else -_leading_zeros(abs(value))
    return f"{value:.{max(0, 4 - magnitude)}f}"


def _leading_zeros(value: float) -> int:
    """Return how many zeros follow the point of a number below 1 (at most 8)."""
    return next((i for i in range(8) if value >= 10.0 ** -(i + 1)), 8)


def _percent(share: float) -> str:
    return f"{share * 100:.1f} %"
