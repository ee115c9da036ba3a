"""KV on its way from prefill to decode replicas: how long it takes, and the books of it."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING, cast, final

import numpy as np
import numpy.typing as npt

from ...hwmodels.steptypes import StepDevice, chip_of
from ...hwmodels.timing.allreduce import AllReduceParams
from ...hwmodels.timing.hop import handover_seconds
from ..building import pool_shape
from ..scenario.pooling import kv_network

if TYPE_CHECKING:
    from ..scenario.cluster import Pools
    from ..scenario.schema import Scenario
    from .replica import ReplicaKind

NS_PER_S = 1_000_000_000
COLUMNS: tuple[str, ...] = (
    "index", "prefill_replica", "decode_replica", "handed_ns", "asked_ns", "sent_ns", "arrived_ns", "sent_bytes",
)  # fmt: skip
"""Of each handover; -1 where the event never came."""


@final
class Handovers:
    """The links between prefill and decode replicas.

    A replica's link carries one request's KV at a time, in the order in which the decode replicas have room: a transfer
    begins when the link of its sender and that of its receiver are both free, and holds both.

    Approximation: transfers slow no step. A real one reads and writes HBM beside them: 50 GB/s are 1.5 % of an H100's
    bandwidth.

    Parameters
    ----------
    rules : which prompts stay on their decode replica
    replicas : how many there are in both pools
    block_bytes : one block of KV on all ranks of a decode replica [B]
    seconds : what so many bytes take alone [s]

    Attributes
    ----------
    local : prompts computed on their decode replica
    busy_ns : how long the link of each replica was held [ns]
    """

    def __init__(
        self, rules: Pools, replicas: int, block_bytes: int, seconds: Callable[[float], float]
    ) -> None:
        self.rules = rules
        self.block_bytes = block_bytes
        self.seconds = seconds
        self.local = 0
        self.busy_ns = [0] * replicas
        self._free_ns = [0] * replicas
        self._rows = array("q")

    def handed(self, index: int, prefill: int, decode: int, now_ns: int) -> int:
        """Note that a request with its prompt computed waits at its decode replica; return its entry."""
        self._rows.extend((index, prefill, decode, now_ns, -1, -1, -1, 0))
        return len(self._rows) // len(COLUMNS) - 1

    def send(self, entry: int, blocks: int, now_ns: int) -> int:
        """Send so many blocks of a request for which there is room now; return when they have arrived [ns]."""
        row, sent = entry * len(COLUMNS), blocks * self.block_bytes
        ends = self._rows[row + 1], self._rows[row + 2]
        start = max(now_ns, *(self._free_ns[end] for end in ends))
        took = max(round(self.seconds(float(sent)) * NS_PER_S), 1)
        for end in ends:
            self._free_ns[end] = start + took
            self.busy_ns[end] += took
        self._rows[row + 4 : row + 8] = array("q", (now_ns, start, start + took, sent))
        return start + took

    def columns(self) -> dict[str, npt.NDArray[np.int64]]:
        """Return the handovers as ``COLUMNS``, in the order in which they were handed on."""
        table = np.array(self._rows, dtype=np.int64).reshape(-1, len(COLUMNS))
        return {name: table[:, column].copy() for column, name in enumerate(COLUMNS)}


def handovers_of(scenario: Scenario, prefill: ReplicaKind, decode: ReplicaKind) -> Handovers:
    """Return the links between the replicas of a scenario.

    Raises
    ------
    MemboundError : an unknown network, or a device whose own link nobody knows
    """
    pools = scenario.cluster.pools
    assert pools is not None
    network = kv_network(scenario)
    ranks = tuple(kind.resolved.scenario.parallelism.tensor_parallel_size for kind in (prefill, decode))
    device = cast("StepDevice", prefill.lanes)
    params = AllReduceParams.from_lane(device.lane("allreduce", prefill.resolved.engine.lane))
    chip = chip_of(device)

    def seconds(sent: float) -> float:
        return float(handover_seconds(chip, params, sent, (ranks[0], ranks[1]), network))

    return Handovers(pools, pools.total, pool_shape(decode.pool).block_bytes * ranks[1], seconds)


def figures(handovers: Handovers) -> dict[str, object]:
    """Return what the summary says of handovers."""
    table = handovers.columns()
    arrived = table["arrived_ns"] >= 0
    moved = {name: column[arrived] for name, column in table.items()}
    count = int(arrived.sum())

    def seconds(since: str, until: str) -> dict[str, float] | None:
        if not count:
            return None
        spans = np.sort(moved[until] - moved[since])
        return {
            "mean": int(spans.sum()) / count / NS_PER_S,
            "p50": float(np.percentile(spans, 50)) / NS_PER_S,
            "p99": float(np.percentile(spans, 99)) / NS_PER_S,
            "max": int(spans[-1]) / NS_PER_S,
        }

    return {
        "requests": count,
        "lost": int((~arrived).sum()),
        "local_prefills": handovers.local,
        "bytes": int(moved["sent_bytes"].sum()),
        "wait_for_blocks_s": seconds("handed_ns", "asked_ns"),
        "wait_for_link_s": seconds("asked_ns", "sent_ns"),
        "transfer_s": seconds("sent_ns", "arrived_ns"),
    }
