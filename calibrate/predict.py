"""Predicted times of the rows of a table: every operation through one dispatch table, by a device's lanes.

``OPERATIONS`` says for each operation of the long schema which family and lane a row takes, how its time is
predicted from a lane, which regime it is in and where it lies on the axes of the calibrated hull.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ..hwmodels.device import DeviceProfile
from ..hwmodels.errors import CatalogError
from ..hwmodels.lanes import Lane
from ..hwmodels.lanevariants import attention_lane, nearest_lane
from ..hwmodels.steptypes import chip_of
from ..hwmodels.timing.form import Chip
from .dtypes import PRECISION, kv_width
from .fit.allreduce import allreduce_regimes, predict_allreduce_us
from .fit.base import Array
from .fit.decode_attention import decode_regimes, predict_decode_us, seen_keys
from .fit.elementwise import predict_elementwise_us
from .fit.gemm import gemm_regimes, predict_gemm_us
from .fit.linear import linear_regimes, predict_linear_us
from .fit.mla import mla_regimes, predict_mla_decode_us, predict_mla_prefill_us
from .fit.moe import EXPERTS, expert_rows, moe_regimes
from .fit.prefill_attention import predict_prefill_us, prefill_regimes
from .publiclanes import expert_lane
from .streams import STREAMS, moved_bytes_of
from .table import Column, KernelTable

_OWN_LANES: Final = ("naive", "triton_paged")
"""Parts of a kernel's name that make it a lane of its own."""
_ROWS_AT_ONCE: Final = 8192
"""A matrix multiplication looks at 30 tiles and splits a row: more rows at once would fill the memory."""


@dataclass(frozen=True, slots=True)
class Operation:
    """How the rows of one operation are predicted.

    Attributes
    ----------
    family : kernel family of each row
    lane : software lane made for each row, given the software
    predict : times of rows that share one family and lane [us]
    regimes : regime of each row, as the fit names them
    axes : place of each row on the axes of the lane's hull
    """

    family: Callable[[KernelTable], Column]
    lane: Callable[[KernelTable, Column], Column]
    predict: Callable[[DeviceProfile, Lane, KernelTable], Array]
    regimes: Callable[[KernelTable, Chip], NDArray[Any]]
    axes: Callable[[KernelTable], Mapping[str, Array]]


@dataclass(frozen=True, slots=True)
class Group:
    """Rows of a table that share an operation, a family and a lane of a device.

    Attributes
    ----------
    op, family : operation and kernel family
    lane : the lane that was taken
    rows : which rows of the table
    """

    op: str
    family: str
    lane: Lane
    rows: NDArray[np.int64]


def software_of(table: KernelTable) -> Column:
    """Return the software lane of each row by its framework; ``vllm`` where a table names none."""
    return np.array([name or "vllm" for name in table["framework"]], dtype=object)


def groups_of(
    device: DeviceProfile, table: KernelTable, software: str | None = None
) -> Iterator[Group | tuple[str, int, str]]:
    """Yield the groups of a table; where a device has no lane: operation, number of rows and the reason.

    Parameters
    ----------
    software : lane to take for all rows; default: each row's framework
    """
    names = software_of(table) if software is None else np.full(len(table), software, dtype=object)
    for op in dict.fromkeys(table["op"].tolist()):
        rows = np.flatnonzero(table["op"] == op)
        if op not in OPERATIONS:
            yield op, len(rows), f"no timing form for operation {op!r}"
            continue
        part = table.take(rows)
        families, lanes = OPERATIONS[op].family(part), OPERATIONS[op].lane(part, names[rows])
        pairs = list(zip(families.tolist(), lanes.tolist(), strict=True))
        taken: dict[tuple[str, str], tuple[Lane, list[NDArray[np.int64]]]] = {}
        for family, wanted in dict.fromkeys(pairs):
            chosen = rows[[pair == (family, wanted) for pair in pairs]]
            try:
                lane = nearest_lane(device, family, wanted)
            except CatalogError as error:
                yield op, len(chosen), str(error)
                continue
            taken.setdefault((family, lane.lane), (lane, []))[1].append(chosen)
        for (family, _), (lane, parts) in taken.items():
            yield Group(op, family, lane, np.sort(np.concatenate(parts)))


def predict_us(device: DeviceProfile, table: KernelTable, lane: str | None = None) -> Array:
    """Return the predicted time of each row [us]; NaN where there is no form or no lane.

    Parameters
    ----------
    device : whose lanes
    table : rows in the long schema, screened
    lane : software lane for all rows; default: each row's framework

    Examples
    --------
    >>> from membound.hwmodels.device import load_device
    >>> row = {"op": ["gemm"], "dtype": ["bfloat16"], "m": [1], "n": [5120], "k": [17408], "latency_us": [65.0]}
    >>> bool(60.0 < predict_us(load_device("h100_sxm"), KernelTable.of(row))[0] < 70.0)
    True
    """
    out = np.full(len(table), np.nan)
    for group in groups_of(device, table, lane):
        if isinstance(group, Group):
            out[group.rows] = predict_group_us(device, group, table.take(group.rows))
    return out


def predict_group_us(device: DeviceProfile, group: Group, rows: KernelTable) -> Array:
    """Return the predicted time of the rows of one group [us]."""
    return group_model(device, group, rows)(group.lane.params)


def group_model(
    device: DeviceProfile, group: Group, rows: KernelTable
) -> Callable[[Mapping[str, float]], Array]:
    """Return the times of a group's rows as a function of the lane's parameters, for intervals [us]."""
    operation = OPERATIONS[group.op]

    def model(params: Mapping[str, float]) -> Array:
        lane = replace(group.lane, params=params)
        parts = [
            operation.predict(
                device, lane, rows.take(np.arange(start, min(start + _ROWS_AT_ONCE, len(rows))))
            )
            for start in range(0, len(rows), _ROWS_AT_ONCE)
        ]
        return np.concatenate(parts) if parts else np.empty(0)

    return model


def _always(name: str) -> Callable[[KernelTable], Column]:
    return lambda table: np.full(len(table), name, dtype=object)


def gemm_family(table: KernelTable) -> Column:
    """Return ``gemm`` for 16 and 32-bit rows, ``linear_<precision>`` for the others."""
    names = {dtype: f"linear_{PRECISION[dtype].name}" for dtype in PRECISION}
    return np.array([names.get(dtype, "gemm") for dtype in table["dtype"]], dtype=object)


def attention_lanes(table: KernelTable, software: Column) -> Column:
    """Return the attention lane made for each row."""
    columns = (
        table["n_heads"],
        table["n_kv_heads"],
        table["head_dim"],
        kv_width(table),
        table["window"] > 0,
        table["dtype"] == "fp8",
    )
    keys = list(zip(software.tolist(), *(column.tolist() for column in columns), strict=True))
    names = {key: attention_lane(*key[:-2], windowed=key[-2], fp8=key[-1]) for key in dict.fromkeys(keys)}
    kernel = {
        source: next((s for s in _OWN_LANES if s in source), "") for source in set(table["kernel_source"])
    }
    own = [kernel[source] for source in table["kernel_source"]]
    return np.array(
        [names[key] + (f"_{k}" if k else "") for key, k in zip(keys, own, strict=True)], dtype=object
    )


def allreduce_lanes(table: KernelTable, software: Column) -> Column:
    """Return the lane of each row by launch mode: captured in a graph, or eager."""
    eager = ["eager" in source for source in table["kernel_source"]]
    return np.array(
        [f"{name}_eager" if e else name for name, e in zip(software, eager, strict=True)], dtype=object
    )


def expert_family(table: KernelTable) -> Column:
    """Return ``moe`` for 16-bit experts, ``moe_<precision>`` for the others."""
    names = {dtype: f"moe_{held.name}" if held.name else "moe" for dtype, held in EXPERTS.items()}
    return np.array([names.get(dtype, f"moe_{dtype}") for dtype in table["dtype"]], dtype=object)


def expert_lanes(table: KernelTable, software: Column) -> Column:
    """Return the expert lane of each row: that of its kernel, ``vllm_ep`` or ``sglang_triton`` say."""
    keys = [
        (str(gpu), str(name), str(dtype), str(kernel), bool(ep > 1))
        for gpu, name, dtype, kernel, ep in zip(
            table["gpu"], software, table["dtype"], table["kernel_source"], table["ep"], strict=True
        )
    ]
    names = {key: expert_lane(*key) for key in dict.fromkeys(keys)}
    return np.array([names[key] for key in keys], dtype=object)


def latent_lanes(table: KernelTable, software: Column) -> Column:
    """Return the latent-attention lane of each row: ``trtllm_kv8`` for a cache of one byte an element."""
    narrow = (kv_width(table) < 2.0).tolist()
    return np.array(
        [f"{name}_kv8" if n else name for name, n in zip(software, narrow, strict=True)], dtype=object
    )


def _experts(device: DeviceProfile, lane: Lane, table: KernelTable) -> Array:
    found, chip = np.zeros(len(table)), chip_of(device)
    for dtype in dict.fromkeys(table["dtype"].tolist()):
        rows = np.flatnonzero(table["dtype"] == dtype)
        found[rows] = expert_rows(table.take(rows)).predict_us(chip, lane.params, warm=_is_warm(lane))
    return found


def _latent_decode(device: DeviceProfile, lane: Lane, table: KernelTable) -> Array:
    return predict_mla_decode_us(chip_of(device), lane.params, table, warm=_is_warm(lane))


def _latent_prefill(device: DeviceProfile, lane: Lane, table: KernelTable) -> Array:
    return predict_mla_prefill_us(chip_of(device), lane.params, table)


def _gemm(device: DeviceProfile, lane: Lane, table: KernelTable) -> Array:
    if lane.family != "gemm":
        return predict_linear_us(chip_of(device), lane.params, table, warm=_is_warm(lane))
    return predict_gemm_us(chip_of(device), lane.params, table, warm=_is_warm(lane))


def _decode(device: DeviceProfile, lane: Lane, table: KernelTable) -> Array:
    return predict_decode_us(chip_of(device), lane.params, table, warm=_is_warm(lane))


def prefill_family(table: KernelTable) -> Column:
    """Return ``decode_attention`` for prompts of one token that a decode kernel took, else ``prefill_attention``."""
    decode = {source for source in set(table["kernel_source"].tolist()) if "decode" in source}
    taken = [source in decode for source in table["kernel_source"]]
    return np.where(taken, "decode_attention", "prefill_attention").astype(object)


def _prefill(device: DeviceProfile, lane: Lane, table: KernelTable) -> Array:
    if lane.family == "decode_attention":
        return _decode(device, lane, table)
    params = {"eb": device.lane("gemm", lane.lane.partition("_")[0]).params["eb"], **lane.params}
    return predict_prefill_us(chip_of(device), params, table)


def _allreduce(device: DeviceProfile, lane: Lane, table: KernelTable) -> Array:
    return predict_allreduce_us(chip_of(device), lane, table)


def _is_warm(lane: Lane) -> bool:
    """Return whether a lane's tables are timed warm: all but our own, which rotates its buffers."""
    return lane.lane.partition("_")[0] != "torch"


def matrix_regimes(table: KernelTable) -> NDArray[Any]:
    """Return the regime of each matrix product, of low precision or not."""
    low = np.isin(table["dtype"].astype(str), list(PRECISION))
    return np.where(low, linear_regimes(table), gemm_regimes(table))


def gemm_lanes(table: KernelTable, software: Column) -> Column:
    """Return the lane of each row by compute dtype: 16 and 32-bit floats other than bfloat16 have their own."""
    suffix = {"float16": "_fp16", "fp16": "_fp16", "float32": "_fp32", "fp32": "_fp32"}
    pairs = zip(software, table["dtype"], strict=True)
    return np.array([f"{name}{suffix.get(dtype, '')}" for name, dtype in pairs], dtype=object)


def _streams(device: DeviceProfile, lane: Lane, table: KernelTable) -> Array:
    return predict_elementwise_us(chip_of(device), lane.params, moved_bytes_of(table))


def _axes(**columns: str) -> Callable[[KernelTable], Mapping[str, Array]]:
    return lambda table: {axis: table[column].astype(np.float64) for axis, column in columns.items()}


def _all(table: KernelTable, chip: Chip) -> NDArray[Any]:
    return np.full(len(table), "all")


OPERATIONS: Final[dict[str, Operation]] = {
    "gemm": Operation(
        gemm_family,
        gemm_lanes,
        _gemm,
        lambda table, chip: matrix_regimes(table),
        _axes(m="m", n="n", k="k"),
    ),
    "attn_decode": Operation(
        _always("decode_attention"),
        attention_lanes,
        _decode,
        decode_regimes,
        lambda table: {**_axes(batch="batch", heads="n_heads")(table), "context": seen_keys(table)},
    ),
    "attn_prefill": Operation(
        prefill_family,
        attention_lanes,
        _prefill,
        lambda table, chip: prefill_regimes(table),
        _axes(batch="batch", context="q_len", heads="n_heads"),
    ),
    "moe": Operation(
        expert_family,
        expert_lanes,
        _experts,
        lambda table, chip: moe_regimes(table),
        _axes(tokens="num_tokens", hidden="hidden", experts="n_experts", top_k="topk", tp="tp", ep="ep"),
    ),
    "mla_decode": Operation(
        _always("mla_decode"),
        latent_lanes,
        _latent_decode,
        lambda table, chip: mla_regimes(table),
        _axes(batch="batch", context="kv_len", heads="n_heads"),
    ),
    "mla_prefill": Operation(
        _always("mla_prefill"),
        latent_lanes,
        _latent_prefill,
        lambda table, chip: mla_regimes(table),
        _axes(batch="batch", context="kv_len", heads="n_heads"),
    ),
    **{
        op: Operation(
            _always("elementwise"),
            lambda table, software: software,
            _streams,
            _all,
            lambda table: {"bytes": moved_bytes_of(table)},
        )
        for op in STREAMS
    },
    "allreduce": Operation(
        _always("allreduce"),
        allreduce_lanes,
        _allreduce,
        lambda table, chip: allreduce_regimes(table),
        _axes(bytes="bytes", group="world_size"),
    ),
}
"""Operation -> how its rows are predicted."""
