"""The size of a KV pool as text: the sum, term by term, with sources and how sure it is."""

from __future__ import annotations

from typing import Any

from ..hwmodels.hostlog import PrintedFigure
from ..hwmodels.pool import KVPool
from ..hwmodels.sizing import SizeReport
from ..hwmodels.units import format_bytes
from ..sim.output.output import to_json
from .text import csv_of, dtype, gib, labelled, number, table, text_of

PRINTED = "as the engine printed it"


def render_size(report: SizeReport, form: str, *, color: bool = False) -> str:
    """Return a size report as ``table``, ``json`` or ``csv`` (one row)."""
    if form == "json":
        return to_json(report.to_json())
    if form == "csv":
        return csv_of([_flat(report)])
    pool = report.pool
    lines = [
        *labelled("", _title(pool), strong=color),
        *labelled("settings", _settings(pool)),
        "",
        *_sum(pool),
        "",
        *_answer(report, color=color),
        *_stages(report),
        "",
        *_held(report),
        *_log(report),
        *([""] if pool.warnings else []),
        *(line for note in pool.warnings for line in labelled("warning", note)),
    ]
    return text_of(lines)


def _flat(report: SizeReport) -> dict[str, Any]:
    memory = dict(report.memory)
    terms: Any = memory.pop("terms")
    low, high = report.pool.blocks_range
    memory |= {"num_gpu_blocks_range": f"{low}-{high}"}
    parts: dict[str, Any] = report.to_json()
    return (
        {f"settings.{key}": value for key, value in parts["settings"].items()}
        | {f"memory.{key}": value for key, value in memory.items()}
        | {f"terms.{term['name']}_bytes": term["bytes"] for term in terms}
        | {f"per_request_kv.{key}": value for key, value in report.per_request_kv.items()}
        | {"largest_max_model_len": report.pool.largest_max_model_len}
    )


def _title(pool: KVPool) -> str:
    ranks = pool.parallelism
    gpus = ranks.tensor_parallel_size * ranks.pipeline_parallel_size
    device = (f"{gpus} x " if gpus > 1 else "") + pool.device
    formats = f"{dtype(pool.weight_format)} weights, {dtype(pool.kv_cache_dtype)} KV"
    return " · ".join([device, pool.model, formats, pool.engine])


def _settings(pool: KVPool) -> list[str]:
    ranks = pool.parallelism
    said = [
        f"gpu_memory_utilization {pool.gpu_memory_utilization:g}",
        f"max_num_seqs {pool.max_num_seqs:,}",
        f"max_num_batched_tokens {pool.max_num_batched_tokens:,}",
        f"max_model_len {pool.max_model_len:,}",
        f"block_size {pool.block_size}",
    ]
    if ranks.tensor_parallel_size > 1:
        said.append(f"tensor_parallel_size {ranks.tensor_parallel_size}")
    if ranks.pipeline_parallel_size > 1:
        said.append(f"pipeline_parallel_size {ranks.pipeline_parallel_size}")
    return said


def _sum(pool: KVPool) -> list[str]:
    """Return the sum of the tightest rank: budget, less each term, is the pool."""
    rows = [["budget", gib(pool.budget_bytes), "setting", _budget_words(pool)]]
    rows += [
        [f"- {term.name.replace('_', ' ')}", gib(term.bytes), term.source, term.note or PRINTED]
        for term in pool.terms
    ]
    rows.append(["= KV pool", gib(pool.kv_pool_bytes), pool.blocks_source, _pool_words(pool)])
    what = "one rank" if _ranks(pool) > 1 else "memory"
    return table([what, "GiB", "source", "what it is"], rows, right=[1], wrap=True)


def _budget_words(pool: KVPool) -> str:
    share, total = f"{pool.gpu_memory_utilization:g}", gib(pool.total_bytes)
    if abs(pool.budget_bytes - pool.gpu_memory_utilization * pool.total_bytes) < 2**20:
        return f"{share} of the {total} GiB that the driver reports"
    if pool.budget_bytes == pool.total_bytes:
        return "all that the driver reports"
    return f"of the {total} GiB that the driver reports, {share} of what is free at the start"


def _pool_words(pool: KVPool) -> str:
    """Say how sure the pool is, and what else it follows from than the sum above it."""
    left = pool.budget_bytes - sum(term.bytes for term in pool.terms)
    said: list[str] = []
    if pool.blocks_source == "printed":
        said.append(f"as the engine printed it; the sum above would give {gib(left)}")
    elif pool.budget_bytes == pool.total_bytes and pool.gpu_memory_utilization < 1:
        said.append(f"{pool.gpu_memory_utilization:g} of the {gib(left)} GiB left")
    if pool.uncertainty_bytes:
        said.append(f"give or take {gib(pool.uncertainty_bytes)} GiB")
    return "; ".join(said) or "as set"


def _answer(report: SizeReport, *, color: bool) -> list[str]:
    pool = report.pool
    low, high = pool.blocks_range
    fixed = pool.layout.fixed_bytes(pool.max_num_batched_tokens)
    kv = [f"{format_bytes(pool.layout.slope_bytes)} a token"]
    if fixed:
        kv.append(f"{format_bytes(fixed)} a request in windows and states")
    span = "" if low == high else f" ({low:,} to {high:,})"
    blocks = [f"{pool.num_gpu_blocks:,}{span} of {report.memory['block_size']} tokens"]
    if pool.usable_blocks != pool.num_gpu_blocks:
        blocks.append(f"{pool.usable_blocks:,} usable")
    fits = f"{number(pool.max_concurrency)} requests of max_model_len {pool.max_model_len:,} at once"
    if not pool.fits:
        fits = f"not one request of max_model_len {pool.max_model_len:,}: the engine would not start"
    longest = f"the longest request it can hold alone is {pool.largest_max_model_len:,} tokens"
    return [
        *labelled("blocks", blocks),
        *labelled("tokens", f"{pool.kv_capacity_tokens:,}"),
        *labelled("KV on a rank" if _ranks(pool) > 1 else "KV", kv),
        *labelled("answer", f"{fits}; {longest}", strong=color),
    ]


def _log(report: SizeReport) -> list[str]:
    """Return what the log says against the formula, and the rest that this host keeps."""
    log = report.log
    if log is None:
        return []
    rows = [
        [f"{figure.name}, {figure.unit}", _said(figure, figure.printed), _said(figure, figure.formula),
         "-" if figure.error is None else f"{100 * figure.error:+.1f} %"]
        for figure in log.figures
    ]  # fmt: skip
    lines = ["", *table(["the log", "printed", "formula", "error"], rows, right=[1, 2, 3])]
    if log.rest_bytes is not None and log.rest_formula_bytes is not None:
        carried = f"--set kv_cache.reserve_bytes={log.rest_bytes / 2**30:.2f}GiB"
        said = (
            f"keeps {gib(log.rest_bytes)} GiB for growth outside torch and graphs, where the constants say "
        )
        said += f"{gib(log.rest_formula_bytes)}; for other settings of this host: {carried}"
        lines += ["", *labelled("this host", said)]
    return lines + [line for note in log.notes for line in labelled("log", note)]


def _said(figure: PrintedFigure, value: float | None) -> str:
    if value is None:
        return "-"
    if figure.unit == "GiB":
        return gib(value)
    return f"{value:,.2f}" if figure.unit == "requests" else f"{value:,.0f}"


def _ranks(pool: KVPool) -> int:
    return pool.parallelism.tensor_parallel_size * pool.parallelism.pipeline_parallel_size


def _stages(report: SizeReport) -> list[str]:
    """Return each stage of a pipeline; nothing where there is only one."""
    if len(report.pool.stages) == 1:
        return []
    rows = [
        [
            at,
            stage.layers,
            gib(stage.weights.total),
            gib(max(stage.pool_bytes, 0)),
            f"{stage.blocks:,}",
        ]
        for at, stage in enumerate(report.pool.stages)
    ]
    return ["", *table(["stage", "layers", "weights GiB", "KV GiB", "blocks"], rows, right=range(5))]


def _held(report: SizeReport) -> list[str]:
    """Return how many requests of each length fit at once."""
    held = report.held_requests
    if not held:
        return []
    lengths, counts = zip(*((f"{length:,}", f"{count:,}") for length, count in held), strict=True)
    widths = [max(len(a), len(b)) for a, b in zip(lengths, counts, strict=True)]

    def line(label: str, cells: tuple[str, ...]) -> str:
        padded = (cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
        return label.ljust(15) + "  ".join(padded)

    return [line("tokens each", lengths), line("fit at once", counts)]
