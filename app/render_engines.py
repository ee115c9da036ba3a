"""Engine versions as text: what they take by default, and everything one of them decides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ..hwmodels.engine import EngineProfile
from ..hwmodels.enginesections import BatchTier, StepParameter
from ..hwmodels.units import format_seconds
from ..sim.output.output import to_json
from .text import csv_of, labelled, number, table, text_of


def render_engines(engines: Sequence[EngineProfile], form: str) -> str:
    """Return one line an engine version."""
    rows = [_row(engine) for engine in engines]
    if form == "json":
        return to_json(rows)
    if form == "csv":
        return csv_of(rows)
    header = ["engine", "scope", "utilization", "async", "block", "graphs to", "host a step", "measured"]
    cells = [
        [
            row["id"], row["scope"], f"{row['gpu_memory_utilization']:.2f}",
            "yes" if row["async_scheduling"] else "no", row["block_size"], row["max_capture"],
            format_seconds(row["host_exposed_s"]), f"{row['measured']} of {row['parameters']}",
        ]
        for row in rows
    ]  # fmt: skip
    notes = [
        "scope capacity: flags and some step times are borrowed (see the engine's notes). Batch limits depend "
        + "on the card. measured: how many of the step parameters rest on a measurement.",
        "membound size also takes versions without a profile, such as vllm-0.8.5.",
    ]
    lines = table(header, cells, right=[2, 4, 5, 6, 7])
    return text_of([*lines, "", *(line for note in notes for line in labelled("", note))])


def _row(engine: EngineProfile) -> dict[str, Any]:
    step = _parameters(engine)
    return {
        "id": engine.id,
        "engine": engine.engine,
        "version": engine.version,
        "lane": engine.lane,
        "scope": engine.scope,
        "gpu_memory_utilization": engine.defaults.gpu_memory_utilization,
        "async_scheduling": engine.async_scheduling,
        "block_size": engine.defaults.block_size,
        "max_capture": engine.max_capture,
        "host_exposed_s": engine.host_exposed_s,
        "measured": sum(parameter.measured for parameter in step.values()),
        "parameters": len(step),
        "notes": engine.notes,
    }


def _parameters(engine: EngineProfile) -> dict[str, StepParameter]:
    return {name: getattr(engine.step, name) for name in type(engine.step).model_fields}


def render_engine(engine: EngineProfile, form: str) -> str:
    """Return everything one version decides; ``csv`` is its step parameters."""
    step = _parameters(engine)
    if form == "json":
        return to_json(engine.model_dump(mode="json") | {"capture_sizes": list(engine.capture_sizes)})
    if form == "csv":
        return csv_of([{"name": name, **parameter.model_dump()} for name, parameter in step.items()])
    lines = [
        *labelled("", f"{engine.id} · {engine.engine} {engine.version} · kernels of {engine.lane}"),
        *labelled("also", ", ".join(engine.aliases)),
        *labelled("scope", _scope(engine)),
        *labelled("notes", engine.notes),
        "",
        *table(["flag", "default"], list(_flags(engine)), wrap=True),
        *labelled("source", engine.defaults.source),
        "",
        *table(
            ["batch on", "max_num_seqs", "max_num_batched_tokens", "offline"], _tiers(engine), right=[1, 2, 3]
        ),
        "",
        *labelled("graphs", _graphs(engine)),
        *labelled("source", engine.graphs.source),
        "",
        *table(
            ["step", "value", "stderr", "unit", "measured", "source"],
            [[name, *_step_cells(parameter)] for name, parameter in step.items()],
            right=[1, 2],
            wrap=True,
        ),
        "",
        *table(["memory", "value"], list(_capacity(engine)), wrap=True),
        *labelled("source", engine.capacity.source),
    ]
    return text_of(lines)


def _scope(engine: EngineProfile) -> str:
    if engine.scope == "full":
        return "full: scheduler rules, flags, step times and memory follow this version"
    return "capacity: flags and some step times are borrowed"


def _flags(engine: EngineProfile) -> Iterator[tuple[str, str]]:
    for name in type(engine.defaults).model_fields:
        if name not in ("source", "batch"):
            yield name, _plain(getattr(engine.defaults, name))


def _plain(value: object) -> str:
    """Write a value as YAML would."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_plain(inner)}" for key, inner in value.items()) or "none"
    if value is None:
        return "as the version's rules have it"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _tiers(engine: EngineProfile) -> list[list[str]]:
    """Return a row for each kind of card: the limits a server takes, and an offline run's tokens."""
    return [
        [
            _cards(tier, last=at == len(engine.defaults.batch) - 1),
            f"{tier.server.max_num_seqs:,}",
            f"{tier.server.max_num_batched_tokens:,}",
            f"{tier.offline.max_num_batched_tokens:,}",
        ]
        for at, tier in enumerate(engine.defaults.batch)
    ]


def _cards(tier: BatchTier, *, last: bool) -> str:
    if tier.devices:
        return ", ".join(tier.devices)
    least = f"{tier.min_gib:g} GiB and more" if tier.min_gib else "other cards" if last else "any card"
    return least + (f", but {', '.join(tier.excludes)}" if tier.excludes else "")


def _graphs(engine: EngineProfile) -> str:
    ranges = (
        f"{first} to {last} by {step}" if last > first else str(first)
        for first, last, step in engine.graphs.ranges
    )
    arch = "".join(f"; {name}: to {size}" for name, size in engine.graphs.by_arch.items())
    return f"batches of {', '.join(ranges)} tokens, up to {engine.max_capture}{arch}"


def _step_cells(parameter: StepParameter) -> list[str]:
    value, spread = number(parameter.value), number(parameter.stderr)
    unit = parameter.unit
    if unit == "s":
        value, spread, unit = number(parameter.value * 1e6), number(parameter.stderr * 1e6), "us"
    return [value, spread, unit, "yes" if parameter.measured else "no", parameter.source]


def _capacity(engine: EngineProfile) -> Iterator[tuple[str, str]]:
    for name in type(engine.capacity).model_fields:
        if name != "source":
            yield name, _plain(getattr(engine.capacity, name))
