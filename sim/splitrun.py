"""A run of one model whose prefill and decode are streams beside each other: ``compute_split``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .beside import monitored, shared_device
from .books import contention
from .books.kvsums import KVSums
from .books.recording import make_record
from .clock import Clock
from .cluster.replica import Replica, ReplicaKind
from .engine.source import Source
from .metrics.figures import Unknown
from .serving import Tally, run_out
from .setup import setup_of
from .split import DecodeEngine, PoolMeter, PrefillEngine, timers

if TYPE_CHECKING:
    from ..hwmodels.steptypes import StepDevice
    from .books.record import RunRecord
    from .device.resources import SharedDevice
    from .engine.request import Request
    from .scenario.resolve import ResolvedScenario
    from .serving import Progress
    from .workload.workload import Workload

UNVALIDATED = (
    "compute_split is an unvalidated lever: a stream's kernels take the larger of their compute on its units and their "
    "memory time, HBM is shared by max-min fairness, a stream alone has all units; no server that splits them was "
    "measured, and steps are composed synchronously"
)


def play_split(
    resolved: ResolvedScenario,
    workload: Workload,
    *,
    vary: Callable[[ResolvedScenario], tuple[ResolvedScenario, StepDevice]] | None = None,
    keep_steps: bool = False,
    progress: Progress | None = None,
) -> RunRecord:
    """Serve a workload with prefill and decode on their shares of the compute units.

    The record's times are the device's: what streams do beside each other is charged to its causes in proportion.

    Parameters
    ----------
    vary : makes another engine and device (draws)
    """
    kind = ReplicaKind(*((resolved, None) if vary is None else vary(resolved)))
    streams = (Replica(kind, keep_steps=keep_steps), Replica(kind, keep_steps=keep_steps))
    prefill, decode = streams
    decode.allocator = prefill.allocator
    for stream in streams:
        stream.recorder.attribution = None  # the two streams count their steps apart
    meter, device = serve_split(workload, prefill, decode, progress)
    record = make_record(resolved, streams, levers=False)
    return _joined(record, resolved, streams, meter, device)


def serve_split(
    workload: Workload, prefill: Replica, decode: Replica, progress: Progress | None = None
) -> tuple[PoolMeter, SharedDevice]:
    """Serve a workload on two streams until every request has ended; return how full their pool was, and the device."""
    env = Clock(0)
    device = shared_device(env, 2)
    resolved = prefill.kind.resolved
    tally = Tally(len(workload), progress)

    def on_finish(request: Request) -> None:
        tally.add()
        source.finished(request)
        first.wake()

    meter = PoolMeter(lambda: (first, second))
    common: dict[str, Any] = {
        "max_model_len": resolved.kv_cache.max_model_len,
        "fast_forward": False,
        "on_finish": on_finish,
        "observer": meter,
        "device": device,
        "among_others": True,
    }
    of_prefill, of_decode = timers(prefill.kind)
    pool = prefill.allocator
    second = DecodeEngine(env, decode.scheduler, pool, of_decode, decode.recorder, **common)
    first = PrefillEngine(env, prefill.scheduler, pool, of_prefill, prefill.recorder, decode=second, **common)
    requests = workload.iter_requests(prefill.block_size)
    source = Source(env, requests, first.submit, workload.closed_loop, workload.follows, in_turn=True)
    run_out(env, tally, (prefill, decode))
    return meter, device


def _joined(
    record: RunRecord,
    resolved: ResolvedScenario,
    streams: tuple[Replica, Replica],
    meter: PoolMeter,
    device: SharedDevice,
) -> RunRecord:
    """Return the record of two streams as that of the one device that they are on."""
    prefill, decode = streams
    span_ns = record.end_ns - record.start_ns
    works = [stream.accountant.work() for stream in streams]
    busy = {cause: spent for cause, spent in record.causes_ns.items() if cause != "idle"}
    shown = monitored(device, works, record.start_ns, record.end_ns)
    return replace(
        record,
        causes_ns=_once(busy, device.busy_ns) | {"idle": span_ns - device.busy_ns},
        limiter_ns=_once(record.limiter_ns, device.busy_ns),
        wall_ns=span_ns,
        busy_ns=device.busy_ns,
        requests={name: column for name, column in record.requests.items() if name != "replica"},
        kv=_pool_sums(prefill, decode, meter, span_ns).figures(),
        memory=prefill.kind.pool,
        setup=setup_of(resolved, [resolved]),
        replicas=None,
        monitored=shown | {"sm_active": Unknown("units held by streams on shares of them are not counted")},
        contention=contention.figures(_waited(streams), record.busy_ns),
        beside={"streams": {name: _figures(stream, span_ns) for name, stream in _named(streams)}},
        warnings=(*record.warnings, UNVALIDATED),
    )


def _once(times_ns: Mapping[str, int], busy_ns: int) -> dict[str, int]:
    """Return times of both streams as shares of the time in which either ran, in whole ns that add up to it.

    What runs beside each other is charged to its causes in proportion.
    """
    total = sum(times_ns.values())
    found = {name: part * busy_ns // total if total else 0 for name, part in times_ns.items()}
    largest = max(found, key=lambda name: found[name])
    return found | {largest: found[largest] + busy_ns - sum(found.values())} if total else found


def _waited(streams: tuple[Replica, Replica]) -> dict[str, int]:
    total: dict[str, int] = {}
    for stream in streams:
        for resource, lost_ns in stream.accountant.waited_ns.items():
            total[resource] = total.get(resource, 0) + lost_ns
    return total


def _named(streams: tuple[Replica, Replica]) -> list[tuple[str, Replica]]:
    return list(zip(("prefill", "decode"), streams, strict=True))


def _figures(stream: Replica, span_ns: int) -> dict[str, Any]:
    """Return what the summary says of one stream."""
    recorder = stream.recorder
    return {
        "steps": recorder.steps,
        "busy_share": recorder.busy_ns / span_ns if span_ns else None,
        "contention": contention.figures(stream.accountant.waited_ns, recorder.busy_ns),
    }


def _pool_sums(prefill: Replica, decode: Replica, meter: PoolMeter, span_ns: int) -> KVSums:
    """Return how full the pool of both streams was; room that nobody could use is that of the prefill stream."""
    pool, recorder = prefill.allocator, prefill.recorder
    size, blocks = pool.block_size, pool.num_blocks
    live_ns = meter.live_ns
    return KVSums(
        peak_usage=meter.peak_blocks / blocks if blocks else None,
        room_ns=blocks * size * span_ns,
        used_ns=meter.used_ns * size,
        held_ns=meter.held_ns * size,
        scattered_ns=(blocks * recorder.limiter_ns["kv_blocks"] - recorder.short_used_block_ns) * size,
        live_ns=live_ns,
        promised_ns=live_ns,
        keeps_all=pool.keeps_all,
        counts={
            "prefix_queried_tokens": pool.queried_tokens,
            "prefix_hit_tokens": pool.hit_tokens,
            "preemptions": recorder.preemptions + decode.recorder.preemptions,
            "num_gpu_blocks": prefill.kind.pool.num_gpu_blocks,
        },
        behind={},
    )
