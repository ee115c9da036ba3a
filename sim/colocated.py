"""A run of two models on one device: each has its engine, memory, load and books; HBM, units and link they share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..hwmodels.errors import MemboundError
from ..hwmodels.nofit import in_gib, sum_of_terms
from ..hwmodels.pool import Term
from .beside import monitored, shared_device
from .books import contention
from .books.recording import make_record
from .clock import Clock
from .cluster.replica import Replica, ReplicaKind
from .engine.source import Source
from .fields import ScenarioError
from .metrics import metrics
from .metrics.latency import latency
from .metrics.slo import slo
from .serving import Tally, run_out

if TYPE_CHECKING:
    from ..hwmodels.pool import KVPool
    from ..hwmodels.steptypes import StepDevice
    from .books.record import RunRecord
    from .device.resources import SharedDevice
    from .engine.request import Request
    from .scenario.resolve import ResolvedScenario
    from .serving import Progress
    from .workload.workload import Workload

UNVALIDATED = (
    "colocated is an unvalidated lever: two models take turns on compute units and share HBM and links by max-min fair "
    "sharing of progress; no such pair was measured, cache interference and the engines' own arbitration are left out"
)
COST = "cost: the whole device is charged to the first model's tokens"


def play_colocated(
    resolved: ResolvedScenario,
    workload: Workload,
    *,
    vary: Callable[[ResolvedScenario], tuple[ResolvedScenario, StepDevice]] | None = None,
    keep_steps: bool = False,
    progress: Progress | None = None,
) -> RunRecord:
    """Serve two workloads with two models on one device, and return the first one's record with the other's figures.

    Parameters
    ----------
    vary : makes another engine and device of those of a model (draws)

    Raises
    ------
    ScenarioError : both models together need more memory than there is
    """
    second = resolved.colocated
    assert second is not None
    assert second.workload is not None
    varied = [(own, None) if vary is None else vary(own) for own in (resolved, second)]
    kinds = [ReplicaKind(*varied[0]), _second_kind(*varied[1])]
    check_memory([kind.pool for kind in kinds])
    replicas = [Replica(kind, keep_steps=keep_steps) for kind in kinds]
    device = serve_beside([workload, second.workload], replicas, progress)
    records = [
        make_record(own, [replica], levers=False)
        for own, replica in zip((resolved, second), replicas, strict=True)
    ]
    shown = monitored(
        device,
        [record.work for record in records],
        min(record.start_ns for record in records),
        max(record.end_ns for record in records),
    )
    first, other = (
        replace(
            record,
            monitored=shown,
            contention=contention.figures(replica.accountant.waited_ns, record.busy_ns),
            warnings=(*record.warnings, UNVALIDATED),
        )
        for record, replica in zip(records, replicas, strict=True)
    )
    said = tuple(f"colocated: {text}" for text in other.warnings if text not in first.warnings)
    return replace(
        first, beside={"colocated": figures(other)}, others=(other,), warnings=(*first.warnings, COST, *said)
    )


def _second_kind(own: ResolvedScenario, device: StepDevice | None) -> ReplicaKind:
    try:
        return ReplicaKind(own, device)
    except MemboundError as error:
        raise ScenarioError(f"colocated: {error}") from None


def serve_beside(
    workloads: list[Workload], replicas: list[Replica], progress: Progress | None = None
) -> SharedDevice:
    """Serve each workload with its replica, all on one device, until every request has ended; return the device."""
    env = Clock(0)
    device = shared_device(env, len(replicas))
    tally = Tally(sum(map(len, workloads)), progress)

    def ended_of(number: int) -> Callable[[Request], None]:
        def on_finish(request: Request) -> None:
            tally.add()
            sources[number].finished(request)

        return on_finish

    sources: list[Source] = []
    for number, (workload, replica) in enumerate(zip(workloads, replicas, strict=True)):
        engine = replica.start(env, ended_of(number), device=device)
        requests = workload.iter_requests(replica.block_size)
        source = Source(env, requests, engine.submit, workload.closed_loop, workload.follows)
        engine.connect(source)
        sources.append(source)
    run_out(env, tally, replicas)
    return device


def check_memory(pools: list[KVPool]) -> None:
    """Refuse models that together need more memory than the device has, term by term.

    Raises
    ------
    ScenarioError : one line with every term of both
    """
    needed = [_terms(pool) for pool in pools]
    total, most = sum(term.bytes for terms in needed for term in terms), pools[0].total_bytes
    if total <= most:
        return
    sums = "; ".join(
        f"{pool.model}: {sum_of_terms(terms)}" for pool, terms in zip(pools, needed, strict=True)
    )
    raise ScenarioError(
        f"colocated: both models need {in_gib(total)} GiB, {pools[0].device} has {in_gib(most)} GiB ({sums}); allowed: "
        "lower gpu_memory_utilization, kv_cache_memory_bytes or num_gpu_blocks_override of either"
    )


def _terms(pool: KVPool) -> list[Term]:
    """Return what a model holds on the tightest rank, its KV pool included."""
    stage = pool.tightest
    kv = max(pool.num_gpu_blocks, 0) * stage.bytes_per_block
    return [*stage.terms, Term("kv", kv, "formula")]


def figures(record: RunRecord) -> dict[str, Any]:
    """Return what the summary says of the second model."""
    return {
        "model": record.provenance["model"],
        "engine": record.provenance["engine"],
        "requests": metrics.request_counts(record),
        "latency": latency(record),
        "throughput": metrics.throughput(record),
        "slo": slo(record),
        "time_share": metrics.time_share(record),
        "limiter": metrics.limiter_share(record),
        "utilization": metrics.utilization(record),
        "memory": _memory(record),
        "kv": metrics.kv(record),
        "contention": record.contention,
    }


def _memory(record: RunRecord) -> dict[str, Any]:
    from ..hwmodels.sizing import SizeReport

    return dict(SizeReport(record.memory).memory)  # pyright: ignore[reportArgumentType]
