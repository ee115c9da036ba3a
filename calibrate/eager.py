"""Lanes that were timed with their host: eager launches, not kernels.

Public tables hold vLLM's block-scaled fp8 linears (55-290 us for one row) and latent attention (100-340 us) beside
the same kernels of other engines at 3-15 us. A captured decode step must never be calibrated from the former: the
floor of a lane, its shortest call, is held against the lowest floor of any lane of the same GPU and operation.
Rows that we timed ourselves (framework ``torch``) are never judged so: our timer knows which clock it reads, and a lane
of ours is slow because its work is, as dequantising weights on a CPU before each product.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from .table import KernelTable

EAGER_FLOOR_US: Final = 30.0
"""A lane whose shortest call takes longer than this beside another lane's was timed with its host [us]."""
SCREENED: Final = ("gemm", "mla_decode", "mla_prefill")
"""Operations whose smallest calls are the same work in every lane."""
OURS: Final = "torch"
"""Framework of the rows that ``membound calibrate measure`` writes."""


def eager_floors(table: KernelTable, least_us: float = EAGER_FLOOR_US) -> dict[str, float]:
    """Return the lanes whose shortest call is host time, with that floor [us].

    Parameters
    ----------
    table : rows of one GPU and operator, of several lanes
    least_us : a lane is eager where its floor exceeds the lowest floor of any lane of the table by this much [us]

    Examples
    --------
    >>> rows = KernelTable.of({"op": ["gemm"] * 2, "framework": ["sglang", "vllm"], "latency_us": [4.0, 55.0]})
    >>> eager_floors(rows)
    {'vllm///': 55.0}
    """
    keys = table.lane_key
    floors = {str(lane): float(table.latency_us[keys == lane].min()) for lane in np.unique(keys.astype(str))}
    lowest = min(floors.values(), default=0.0)
    return {lane: floor for lane, floor in floors.items() if floor > lowest + least_us}


def without_eager(table: KernelTable, least_us: float = EAGER_FLOOR_US) -> tuple[KernelTable, list[str]]:
    """Return the rows of lanes that are not eager, and a line for each lane that is; our own rows stay.

    Examples
    --------
    >>> rows = KernelTable.of({"op": ["gemm"] * 2, "framework": ["sglang", "vllm"], "latency_us": [4.0, 55.0]})
    >>> kept, lines = without_eager(rows)
    >>> len(kept), lines
    (1, ['excluded 1 rows: gemm lane vllm/// takes 55.0 us at least where another takes 4.0 us: host time'])
    """
    kept, lines = np.ones(len(table), dtype=np.bool_), list[str]()
    public = table["framework"] != OURS
    for op in SCREENED:
        of_op = public & (table["op"] == op)
        part = table.where(of_op)
        lowest = float(part.latency_us.min()) if len(part) else 0.0
        for lane, floor in eager_floors(part, least_us).items():
            rows = of_op & (table.lane_key == lane)
            kept &= ~rows
            lines.append(
                f"excluded {int(rows.sum())} rows: {op} lane {lane} takes {floor:.1f} us at least"
                f" where another takes {lowest:.1f} us: host time"
            )
    return table.where(kept), lines
