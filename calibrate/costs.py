"""Necessary FLOP and bytes of the rows of a table, by the same lowering as a step of a model.

Lower bounds: what no kernel can avoid. The speed-of-light screen compares them with what the datasheet allows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ..hwmodels.kernelcall import keys_read, prefill_pairs
from ..hwmodels.lowering import AttentionShape, LinearShape
from ..hwmodels.precision import Precision
from .dtypes import COMPUTE, PRECISION, element_width, kv_width
from .fit.base import Array
from .fit.decode_attention import seen_keys
from .table import Column, KernelTable

_PLAIN_BYTES: Final = 2.0


@dataclass(frozen=True, slots=True)
class RowCosts:
    """Necessary work of each row.

    Attributes
    ----------
    flop : multiplications and additions, shape (n,) [FLOP]
    moved : bytes that a call must read or write, shape (n,) [B]; in a warm table they may come from the cache
    compute : dtype whose peak bounds the row, shape (n,)
    """

    flop: Array
    moved: Array
    compute: Column


def _gemm(table: KernelTable) -> tuple[Array, Array]:
    m, n, k = table.numbers("m", "n", "k")
    flop, moved = np.zeros(len(table)), np.zeros(len(table))
    for dtype in set(table["dtype"].tolist()):
        rows = table["dtype"] == dtype
        width = element_width(dtype)
        precision = PRECISION.get(dtype, Precision("", width, width, width, "bf16"))
        matrix: Any = LinearShape("row", n[rows], k[rows], precision)  # type: ignore[arg-type]
        flop[rows] = matrix.flop_per_token * m[rows]
        activations = m[rows] * (k[rows] * precision.input_bytes + n[rows] * precision.output_bytes)
        moved[rows] = matrix.weight_bytes + activations
    return flop, moved


def _shape(table: KernelTable) -> Any:
    heads, kv_heads, dim = table.numbers("n_heads", "n_kv_heads", "head_dim")
    return AttentionShape("gqa", heads, kv_heads, dim, dim, kv_width(table), 0.0)  # type: ignore[arg-type]


def _decode(table: KernelTable) -> tuple[Array, Array]:
    (batch,) = table.numbers("batch")
    shape, keys = _shape(table), batch * seen_keys(table)
    heads, dim = table.numbers("n_heads", "head_dim")
    io = 2.0 * _PLAIN_BYTES * heads * dim * batch
    return shape.flop_per_pair * keys, shape.kv_bytes_read_per_key * keys + io


def _prefill(table: KernelTable) -> tuple[Array, Array]:
    (batch,) = table.numbers("batch")
    triples = np.column_stack([table["q_len"], table["kv_len"], np.maximum(table["window"], 0)])
    kinds, member = np.unique(triples, axis=0, return_inverse=True)
    cached = [max(keys - new, 0) for new, keys, _ in kinds.tolist()]
    pairs = np.array(
        [prefill_pairs(new, had, w) for (new, _, w), had in zip(kinds.tolist(), cached, strict=True)]
    )
    read = np.array([keys_read(new, had, w) for (new, _, w), had in zip(kinds.tolist(), cached, strict=True)])
    shape, (new,) = _shape(table), table.numbers("q_len")
    heads, dim = table.numbers("n_heads", "head_dim")
    io = 2.0 * _PLAIN_BYTES * heads * dim * new * batch
    at = member.ravel()
    return shape.flop_per_pair * pairs[at] * batch, shape.kv_bytes_read_per_key * read[at] * batch + io


COSTS: Final[dict[str, Callable[[KernelTable], tuple[Array, Array]]]] = {
    "gemm": _gemm,
    "attn_decode": _decode,
    "attn_prefill": _prefill,
}
"""Operation -> FLOP and bytes of its rows; other operations are not screened against the speed of light."""

SHAPES: Final[dict[str, tuple[str, ...]]] = {
    "gemm": ("m", "n", "k"),
    "attn_decode": ("batch", "kv_len", "n_heads", "n_kv_heads", "head_dim"),
    "attn_prefill": ("batch", "q_len", "kv_len", "n_heads", "n_kv_heads", "head_dim"),
    "allreduce": ("bytes", "world_size"),
    "moe": ("num_tokens", "hidden", "inter", "topk", "n_experts"),
    "mla_decode": ("batch", "kv_len", "n_heads"),
    "mla_prefill": ("batch", "q_len", "kv_len", "n_heads"),
}
"""Operation -> columns that a row must have, each at least 1."""


def row_costs(table: KernelTable) -> RowCosts:
    """Return the necessary work of each row; 0 for operations that are not counted here.

    Examples
    --------
    >>> table = KernelTable.of({"op": ["gemm"], "dtype": ["bfloat16"], "m": [2], "n": [4], "k": [8],
    ...                         "latency_us": [1.0]})
    >>> costs = row_costs(table)
    >>> costs.flop.tolist(), costs.moved.tolist(), costs.compute.tolist()
    ([128.0], [112.0], ['bf16'])
    """
    flop, moved = np.zeros(len(table)), np.zeros(len(table))
    for op, counted in COSTS.items():
        rows = np.flatnonzero(table["op"] == op)
        if len(rows):
            flop[rows], moved[rows] = counted(table.take(rows))
    compute = np.array([COMPUTE.get(dtype, "bf16") for dtype in table["dtype"]], dtype=object)
    return RowCosts(flop, moved, compute)
