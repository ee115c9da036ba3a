"""The replicas of a scenario, and what is known of them together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

import numpy as np
import numpy.typing as npt

from ..building import make_router
from . import handover
from .admission import Gate
from .failures import outages_of
from .fleet import Fleet
from .pools import SplitFleet
from .replica import Replica, ReplicaKind
from .scaling import ElasticFleet, scaler_of

if TYPE_CHECKING:
    from ...hwmodels.steptypes import StepDevice
    from ..clock import Clock
    from ..engine.request import Request
    from ..scenario.resolve import ResolvedScenario

NS_PER_S = 1_000_000_000
PHASES = ("prefill", "decode")


@final
class Cluster:
    """One replica, or several behind a router.

    Parameters
    ----------
    resolved : the scenario
    vary : makes another engine and device of those of a kind of replicas (draws)
    keep_steps : keep per-step columns for the result directory

    Attributes
    ----------
    replicas : kind by kind
    outages : when they fail; None: never
    scaler : how many there are; None: always all
    handovers : KV between prefill and decode replicas; None where both are done by the same
    """

    def __init__(
        self,
        resolved: ResolvedScenario,
        vary: Callable[[ResolvedScenario], tuple[ResolvedScenario, StepDevice]] | None = None,
        *,
        keep_steps: bool = False,
    ) -> None:
        self.resolved, asked = resolved, resolved.scenario.cluster
        moves = asked.failures is not None or asked.pools is not None
        self.replicas: list[Replica] = []
        self.kinds: list[ReplicaKind] = []
        for group in resolved.kinds:
            varied = (group.resolved, None) if vary is None else vary(group.resolved)
            kind = ReplicaKind(*varied, name=group.name)
            self.kinds.append(kind)
            # Each data-parallel copy composes its own steps: an engine with KV memory of its own, behind the router.
            engines = group.count * group.resolved.scenario.parallelism.data_parallel_size
            if asked.autoscale is not None:
                engines = asked.autoscale.max
            self.replicas += [Replica(kind, keep_steps=keep_steps, moves=moves) for _ in range(engines)]
        self.gate = None if asked.admission is None else Gate(asked.admission)
        self.outages = asked.failures and outages_of(
            asked.failures, resolved.scenario.simulation.seed, self.replicas
        )
        self.scaler = asked.autoscale and scaler_of(resolved, asked.autoscale, self.replicas)
        self.handovers = asked.pools and handover.handovers_of(
            resolved.scenario, self.kinds[0], self.kinds[1]
        )

    @property
    def routed(self) -> bool:
        """Whether requests go through a router."""
        there = (self.gate, self.outages, self.scaler)
        return len(self.replicas) > 1 or any(each is not None for each in there)

    def fleet(self, env: Clock, on_finish: Callable[[Request], None]) -> Fleet:
        """Put the replicas behind a router each, or one for both pools."""
        others: dict[str, Any] = {"gate": self.gate, "outages": self.outages}
        if self.scaler is not None:
            router = make_router(self.resolved)
            return ElasticFleet(env, self.replicas, router, on_finish, self.scaler, **others)
        if self.handovers is None:
            return Fleet(env, self.replicas, make_router(self.resolved), on_finish, **others)
        prefill, decode = (make_router(self.resolved, phase) for phase in PHASES)
        return SplitFleet(
            env, self.replicas, self._count(0), (prefill, decode), on_finish, self.handovers, **others
        )

    def _count(self, kind: int) -> int:
        return sum(replica.kind is self.kinds[kind] for replica in self.replicas)

    def alive_ns(self, replica: int, start_ns: int, end_ns: int) -> int:
        """Return for how long a replica was there within a span, starting and ending included [ns]."""
        return end_ns - start_ns if self.scaler is None else self.scaler.alive_ns(replica, start_ns, end_ns)

    def columns(self, indices: npt.NDArray[np.int64]) -> dict[str, npt.NDArray[np.int64]]:
        """Return what is known of each request's way, beside where it ended; -1 where it took none."""
        if self.handovers is None:
            return {}
        table = self.handovers.columns()
        place = np.searchsorted(indices, table["index"])
        found: dict[str, npt.NDArray[np.int64]] = {}
        for name in ("prefill_replica", "asked_ns", "sent_ns", "arrived_ns"):
            column = np.full(len(indices), -1, dtype=np.int64)
            column[place] = table[name]
            found[name if name == "prefill_replica" else f"kv_{name}"] = column
        return found

    def figures(self, served: Sequence[Mapping[str, Any]], start_ns: int, end_ns: int) -> dict[str, Any]:
        """Return what the summary says of the replicas together beside their sums."""
        if self.scaler is not None:
            gpus = self.replicas[0].kind.gpus
            return {"autoscale": self.scaler.figures(start_ns, end_ns, gpus)}
        if self.handovers is None:
            return {}
        span, first = end_ns - start_ns, self._count(0)
        pools = {}
        for phase, members in zip(PHASES, (range(first), range(first, len(self.replicas))), strict=True):
            pools[phase] = self._pool(members, span)
        return {"pools": pools, "handovers": handover.figures(self.handovers)}

    def _pool(self, members: range, span_ns: int) -> dict[str, Any]:
        """Return what the summary says of one pool; shares are of the wall time of its replicas."""
        replicas = [self.replicas[number] for number in members]
        wall = span_ns * len(replicas)
        busy = sum(replica.recorder.busy_ns for replica in replicas)
        causes: dict[str, int] = {}
        for replica in replicas:
            for cause, spent in replica.accountant.causes_ns.items():
                causes[cause] = causes.get(cause, 0) + spent
        links = sum(self.handovers.busy_ns[number] for number in members) if self.handovers else 0
        share = {cause: spent / wall for cause, spent in causes.items()} if wall else None
        return {
            "replicas": len(replicas),
            "gpus": sum(replica.kind.gpus for replica in replicas),
            "device": replicas[0].kind.resolved.device.id,
            "steps": sum(replica.recorder.steps for replica in replicas),
            "preemptions": sum(replica.recorder.preemptions for replica in replicas),
            "busy_share": busy / wall if wall else None,
            "link_share": links / wall if wall else None,
            "time_share": None if share is None else {**share, "idle": 1 - busy / wall},
        }
