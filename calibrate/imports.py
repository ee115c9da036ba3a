"""Timings that others published, as one table in the long schema.

Formats are told by their columns: the long schema itself, per-layer profiles (``layers_vidur``,
``layers_llmservingsim``), attention on mixed batches, and the raw files of AIConfigurator's collector. What has no
operation in the schema is left out and counted.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from ..hwmodels.errors import MemboundError
from ..hwmodels.lowering import ModelPlan, Parallelism, lower_model
from ..hwmodels.model import load_model
from ..hwmodels.precision import Quantization
from .errors import CalibrationError
from .table import SCHEMA, Column, KernelTable, read_columns

Rows = list[dict[str, Any]]
_PROJECTIONS: Final = ("attn_pre_proj", "attn_post_proj", "mlp_up_proj", "mlp_down_proj")
_US_PER_MS: Final = 1000.0


@dataclass(frozen=True, slots=True)
class Imported:
    """A file as a kernel table.

    Attributes
    ----------
    table : rows in the long schema
    format : how the file was read
    left_out : rows without an operation in the schema, by their name
    """

    table: KernelTable
    format: str
    left_out: Mapping[str, int]

    def lines(self) -> list[str]:
        """Return one line for what was read and one for each kind of row that was left out."""
        head = f"{len(self.table)} rows of {self.table.origin} ({self.format})"
        return [head, *(f"left out {n} rows: no operation for {name!r}" for name, n in self.left_out.items())]


def import_table(path: str | os.PathLike[str]) -> Imported:
    """Read a file of timings in any of the known formats.

    Raises
    ------
    CalibrationError : no such file, or columns that belong to no format
    """
    path = Path(path)
    columns = read_columns(path)
    for name, (needed, read) in FORMATS.items():
        if needed <= set(columns):
            rows, left_out = read(columns)
            return Imported(_table(rows, str(path)), name, left_out)
    known = "; ".join(f"{name}: {', '.join(sorted(needed))}" for name, (needed, _) in FORMATS.items())
    raise CalibrationError(
        f"{str(path)!r} is in no known format (columns {', '.join(columns)}); known: {known}"
    )


Read = tuple["Rows | dict[str, Column]", Mapping[str, int]]


def _long(columns: Mapping[str, Column]) -> Read:
    return {name: columns[name] for name in SCHEMA if name in columns}, {}


def _vidur(columns: Mapping[str, Column]) -> Read:
    """Map layers of microsoft/vidur: projections are matrix multiplications, the rest streams activations."""
    streams = {
        "input_layernorm": "rmsnorm", "post_attention_layernorm": "rmsnorm", "attn_rope": "rotary",
        "emb": "embedding",
    }  # fmt: skip
    rows: Rows = []
    left: Counter[str] = Counter()
    for row in _records(columns):
        op, common = row["op"], _common(row, "vidur")
        if op in _PROJECTIONS:
            rows.append({**common, "op": "gemm", "m": row["num_tokens"], "n": row["n"], "k": row["k"]})
            continue
        name = "swiglu" if op == "mlp_act" and row["gated"] else streams.get(op)
        if name is None:
            left[str(op)] += 1
            continue
        tp = row["tp"]
        rows.append(
            {
                **common,
                "op": name,
                "num_tokens": row["num_tokens"],
                "hidden": row["n_embd"],
                "inter": row["n_ffn"] // tp,
                "n_heads": row["n_head"] // tp,
                "n_kv_heads": max(row["n_kv_head"] // tp, 1),
                "head_dim": row["n_embd"] // row["n_head"],
                "tp": tp,
            }
        )
    return rows, left


def _llmservingsim(columns: Mapping[str, Column]) -> Read:
    """Map layers of casys-kaist/LLMServingSim; widths come from the model, lowered as for a step."""
    streams = {
        "layernorm": "rmsnorm", "final_layernorm": "rmsnorm", "act_fn": "swiglu", "rotary_emb": "rotary",
        "embedding": "embedding",
    }  # fmt: skip
    plans: dict[tuple[str, int], tuple[ModelPlan, Any]] = {}
    rows: Rows = []
    left: Counter[str] = Counter()
    for row in _records(columns):
        key = (str(row["model"]), int(row["tp"]))
        if key not in plans:
            plans[key] = _plan(*key)
        plan, model = plans[key]
        common, count, op = _common(row, "vllm"), row["count"], str(row["op"])
        matrices = {each.name: each for each in (*plan.layers[0].linears, plan.head)}
        matrix = matrices.get(op)
        if matrix is not None:
            rows.append({**common, "op": "gemm", "m": count, "n": matrix.n, "k": matrix.k})
        elif op in streams:
            attention = plan.layers[0].attention
            assert attention is not None
            rows.append(
                {
                    **common,
                    "op": streams[op],
                    "num_tokens": count,
                    "hidden": model.hidden,
                    "inter": matrices["down_proj"].k,
                    "n_heads": attention.n_heads,
                    "n_kv_heads": attention.n_kv_heads,
                    "head_dim": attention.head_dim,
                    "tp": key[1],
                }
            )
        else:
            left[op] += 1
    return rows, left


def _mixed(columns: Mapping[str, Column]) -> Read:
    """Map attention on mixed batches: pure decodes and pure chunks become rows of their own operation.

    The cards of these tables have no kernel of FlashAttention 3 or 4, so vLLM takes 2 on them.
    """
    plans: dict[tuple[str, int], tuple[ModelPlan, Any]] = {}
    rows: Rows = []
    left: Counter[str] = Counter()
    for row in _records(columns):
        if row["regime"] != "uniform":
            left["decodes of unequal length"] += 1
            continue
        key = (str(row["model"]), int(row["tp"]))
        if key not in plans:
            plans[key] = _plan(*key)
        attention = plans[key][0].layers[0].attention
        assert attention is not None
        new, cached, decodes = row["q_len_prefill"], row["kv_prefill"], row["n_decode"]
        heads = {
            "n_heads": attention.n_heads,
            "n_kv_heads": attention.n_kv_heads,
            "head_dim": attention.head_dim,
        }
        common = {**_common(row, "vllm"), **heads, "kv_dtype": "bfloat16", "window": 0}
        common["kernel_source"] = "vllm_flash_attn2"
        if not new:
            rows.append(
                {**common, "op": "attn_decode", "batch": decodes, "q_len": 1, "kv_len": row["kv_decode"]}
            )
        elif not decodes:
            rows.append({**common, "op": "attn_prefill", "batch": 1, "q_len": new, "kv_len": cached + new})
        else:
            rows.append(
                {
                    **common,
                    "op": "attn_mixed",
                    "batch": decodes,
                    "kv_len": row["kv_decode"],
                    "q_len": new,
                    "num_tokens": cached + new,
                }
            )
    return rows, left


def _collector(columns: Mapping[str, Column]) -> Read:
    """Map raw files of AIConfigurator's collector: latencies in milliseconds, one operation a file."""
    renamed = {
        "device": "gpu", "version": "framework_version", "gemm_dtype": "dtype", "attn_dtype": "dtype",
        "moe_dtype": "dtype", "kv_cache_dtype": "kv_dtype", "batch_size": "batch", "num_heads": "n_heads",
        "num_key_value_heads": "n_kv_heads", "window_size": "window", "hidden_size": "hidden", "inter_size": "inter",
        "num_experts": "n_experts", "moe_tp_size": "tp", "moe_ep_size": "ep", "num_gpus": "world_size",
        "message_size": "bytes",
    }  # fmt: skip
    operations = {
        "gemm": "gemm", "context_attention": "attn_prefill", "generation_attention": "attn_decode", "moe": "moe",
        "all_reduce": "allreduce", "mla_context": "mla_prefill", "mla_generation": "mla_decode",
    }  # fmt: skip
    rows: Rows = []
    left: Counter[str] = Counter()
    for record in _records(columns):
        op = operations.get(str(record["op_name"]))
        if op is None:
            left[str(record["op_name"])] += 1
            continue
        row = {renamed.get(name, name): value for name, value in record.items()}
        row = {name: value for name, value in row.items() if name in SCHEMA}
        row |= {"op": op, "latency_us": record["latency"] * _US_PER_MS}
        if op in ("attn_prefill", "mla_prefill"):
            row |= {"q_len": record["isl"], "kv_len": record["isl"] + max(record.get("step", 0), 0)}
        elif op in ("attn_decode", "mla_decode"):
            row |= {"q_len": 1, "kv_len": record["isl"] + max(record.get("step", 0), 0)}
        if op.startswith("attn_") and not record["num_key_value_heads"]:
            row["n_kv_heads"] = row["n_heads"]  # the collector writes 0 where every head has its own
        rows.append(row)
    return rows, left


FORMATS: Final[dict[str, tuple[set[str], Callable[[Mapping[str, Column]], Read]]]] = {
    "layers_vidur": ({"op", "num_tokens", "n_embd", "n_ffn", "latency_us"}, _vidur),
    "layers_llmservingsim": ({"op", "count", "scaled_by", "model", "latency_us"}, _llmservingsim),
    "attention_mixed": ({"q_len_prefill", "kv_prefill", "n_decode", "kv_decode", "latency_us"}, _mixed),
    "collector": ({"op_name", "latency", "framework"}, _collector),
    "long": ({"op", "latency_us"}, _long),
}
"""Format -> columns that tell it, and how its columns become rows; the first that fits is taken."""


def _records(columns: Mapping[str, Column]) -> Rows:
    names = list(columns)
    return [
        dict(zip(names, row, strict=True)) for row in zip(*(columns[n].tolist() for n in names), strict=True)
    ]


def _common(row: Mapping[str, Any], framework: str) -> dict[str, Any]:
    dtype = {"bf16": "bfloat16", "fp16": "float16"}.get(str(row.get("dtype", "")), str(row.get("dtype", "")))
    return {
        "gpu": row["gpu"],
        "framework": framework,
        "dtype": dtype or "bfloat16",
        "latency_us": row["latency_us"],
        "source": row.get("source", ""),
    }


def _plan(model: str, tp: int) -> tuple[ModelPlan, Any]:
    try:
        spec = load_model(model)
    except MemboundError as error:
        raise CalibrationError(f"the table's layers need the widths of their model: {error}") from None
    return lower_model(spec, Parallelism(tensor_parallel_size=tp), Quantization()), spec


def _table(rows: Any, origin: str) -> KernelTable:
    if isinstance(rows, dict):
        return KernelTable.of(rows, origin)
    if not rows:
        raise CalibrationError(f"{origin!r} has no row of a known operation")
    names = {name for row in rows for name in row}
    return KernelTable.of({name: [row.get(name, _absent(name)) for row in rows] for name in names}, origin)


def _absent(name: str) -> Any:
    return "" if name in ("kernel_source", "kv_dtype", "framework_version", "distribution") else np.nan
