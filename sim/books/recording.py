"""From the replicas of a finished run to its record: their books added up over one common span."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from ...hwmodels.unmeasured import unmeasured
from ..building import kept_step_model
from ..engine.request import Status
from ..metrics.histogram import LogHistogram
from ..setup import provenance_of, setup_of
from ..tiers.offload import warnings_of
from .draftaccounting import speculative_figures
from .kvsums import KVSums, added, kv_sums
from .record import CAUSES, LIMITERS, RunRecord

if TYPE_CHECKING:
    from ...hwmodels.steptypes import StepDevice
    from ..cluster.cluster import Cluster
    from ..cluster.failures import Outages
    from ..cluster.replica import Replica, ReplicaKind
    from ..scenario.resolve import ResolvedScenario
    from .accounting import AnyStepModel

Int64Array = npt.NDArray[np.int64]
Columns = Mapping[str, Int64Array]
KV_COLUMNS = ("used_blocks", "held_blocks", "live_tokens", "kv_in_bytes", "kv_out_bytes")
UNVALIDATED = (
    "cluster: routers and replicas are an unvalidated lever, not held against a measured cluster; "
    "routing takes no time"
)
FAILING = (
    "cluster.failures: an unvalidated lever; steps under way end with effect, then requests are routed again and their "
    "KV is computed again; time down counts as idle, and no time by cause is kept of single requests, which move"
)
SCALED = (
    "cluster.autoscale: an unvalidated lever, held against no autoscaler; a replica is paid for from the decision to "
    "start it until it has ended, which counts as its wall time, and starts with an empty prefix cache"
)
SPLIT = (
    "cluster.pools: an unvalidated lever, no server with prefill and decode replicas was measured; KV is sent over a "
    "link of each replica, one request at a time, at its datasheet's rate, and slows no step; no time by cause is kept "
    "of single requests, which move"
)
SAMPLED_REPLICAS = 8
COUNTS = ("steps", "jumps", "skipped_steps", "empty_batches", "wasted_tokens", "late_tokens")


def make_record(
    resolved: ResolvedScenario,
    replicas: Sequence[Replica],
    cluster: Cluster | None = None,
    *,
    levers: bool = True,
) -> RunRecord:
    """Put together what is known of a finished run.

    Parameters
    ----------
    resolved : the question
    replicas : who served it
    cluster : what is known of them together, where they are a cluster
    levers : work out what would have made the steps shorter; without, the verdict names no lever
    """
    outages = cluster and cluster.outages
    recorders = [replica.recorder for replica in replicas]
    served = [recorder.requests() for recorder in recorders]
    requests, slo_classes, reject_reasons = merged_requests(replicas, served)
    requests |= {} if cluster is None else cluster.columns(requests["index"])
    start = int(requests["arrival_ns"].min())
    end = max(int(requests["last_token_ns"].max()), start)
    alive = [
        end - start if cluster is None else cluster.alive_ns(number, start, end)
        for number in range(len(replicas))
    ]
    wall, busy = sum(alive), sum(recorder.busy_ns for recorder in recorders)
    pools = [
        kv_sums(replica.allocator, replica.recorder, own, replica.kind.pool.num_gpu_blocks, lived)
        for replica, own, lived in zip(replicas, served, alive, strict=True)
    ]
    causes = dict.fromkeys(CAUSES, 0) | _summed(replica.accountant.causes_ns for replica in replicas)
    causes["idle"] = wall - busy
    counts = {name: sum(getattr(recorder, name) for recorder in recorders) for name in COUNTS}
    steps = _step_columns(replicas)
    kinds = list(dict.fromkeys(replica.kind for replica in replicas))
    rules = [replica.rules for replica in replicas if replica.rules is not None]
    return RunRecord(
        requests=requests,
        causes_ns=causes,
        limiter_ns={name: sum(recorder.limiter_ns[name] for recorder in recorders) for name in LIMITERS},
        wall_ns=wall,
        busy_ns=busy,
        start_ns=start,
        end_ns=end,
        itl=_gaps(replicas),
        itl_by_position=_by_position([recorder.itl_by_position() for recorder in recorders]),
        kv=added(pools).figures(),
        work=_work(replicas, end - start, levers),
        counts=counts | {"events": counts["steps"] - counts.pop("skipped_steps")},
        slo_classes=slo_classes or ("default",),
        reject_reasons=reject_reasons,
        steps=steps,
        kv_timeline=None if steps is None else _timeline(steps),
        per_request_causes=_per_request(replicas, requests["index"]),
        memory=kinds[0].pool if len(kinds) == 1 else None,
        speculative=speculative_figures(rules, [replica.accountant for replica in replicas], busy),
        provenance=provenance_of(
            kinds[0].resolved,
            kinds[0].lanes.families,
            [(kind.resolved, kind.lanes.families) for kind in kinds[1:]],
        ),
        warnings=_warnings(resolved, replicas, end - start),
        scenario=resolved.scenario,
        setup=replace(
            setup_of(resolved, [replica.kind.resolved for replica in replicas]),
            mean_gpus=_mean_gpus(replicas, alive, end - start),
        ),
        replicas=None
        if len(replicas) == 1 and outages is None
        else [
            _figures_of(*each) | _outages_of(outages, number, start, end)
            for number, each in enumerate(zip(replicas, served, pools, alive, strict=True))
            if each[-1] or end == start
        ],
        requeued=None if outages is None else sum(outages.requeued),
        beside={} if cluster is None else cluster.figures(served, start, end),
    )


def _mean_gpus(replicas: Sequence[Replica], alive_ns: Sequence[int], span: int) -> float | None:
    """Return how many GPUs there were on average, None where all were there all the time."""
    if min(alive_ns) == span:
        return None
    return sum(replica.kind.gpus * lived for replica, lived in zip(replicas, alive_ns, strict=True)) / span


def merged_requests(
    replicas: Sequence[Replica], served: Sequence[Columns]
) -> tuple[dict[str, Int64Array], tuple[str, ...], tuple[str, ...]]:
    """Return the requests of all replicas in order of submission, and the names of their classes and reasons."""
    if len(replicas) == 1:
        recorder = replicas[0].recorder
        return dict(served[0]), tuple(recorder.slo_classes), tuple(recorder.reject_reasons)
    classes: dict[str, int] = {}
    reasons: dict[str, int] = {}
    codes = {
        "slo_class": [_recoding(replica.recorder.slo_classes, classes) for replica in replicas],
        "reject_reason": [_recoding(replica.recorder.reject_reasons, reasons) for replica in replicas],
    }
    order = np.argsort(np.concatenate([own["index"] for own in served]), kind="stable")
    merged: dict[str, Int64Array] = {}
    for name in served[0]:
        columns = [own[name] for own in served]
        if name in codes:
            columns = [recode[column] for recode, column in zip(codes[name], columns, strict=True)]
        merged[name] = np.concatenate(columns)[order]
    home = np.repeat(np.arange(len(served)), [len(own["index"]) for own in served])
    return merged | {"replica": home[order]}, tuple(classes), tuple(reasons)


def _recoding(own: Mapping[str, int], common: dict[str, int]) -> Int64Array:
    """Return a replica's codes as common ones, by own code; the last is that of -1, which stays."""
    return np.array([common.setdefault(name, len(common)) for name in own] + [-1], dtype=np.int64)


def _summed(parts: Any) -> dict[str, Any]:
    total: dict[str, Any] = {}
    for part in parts:
        for name, value in part.items():
            total[name] = total.get(name, 0) + value
    return total


def _gaps(replicas: Sequence[Replica]) -> LogHistogram:
    if len(replicas) == 1:
        return replicas[0].recorder.itl
    merged = LogHistogram()
    for replica in replicas:
        merged.merge(replica.recorder.itl)
    return merged


def _by_position(parts: Sequence[tuple[Int64Array, Int64Array]]) -> tuple[Int64Array, Int64Array]:
    """Return gaps before each output token [ns], and their count, summed over replicas."""
    size = max(len(counts) for _, counts in parts)
    sums, counts = np.zeros(size, dtype=np.int64), np.zeros(size, dtype=np.int64)
    for own_sums, own_counts in parts:
        sums[: len(own_sums)] += own_sums
        counts[: len(own_counts)] += own_counts
    return sums, counts


def _step_columns(replicas: Sequence[Replica]) -> dict[str, Int64Array] | None:
    """Return the steps of one replica after those of the other, with its number where there are several."""
    if len(replicas) == 1:
        return replicas[0].recorder.step_columns()
    tables = [(number, replica.recorder.step_columns()) for number, replica in enumerate(replicas)]
    kept = [(number, table) for number, table in tables if table is not None]
    if not kept:
        return None
    names = [name for name in kept[0][1] if all(name in table for _, table in kept)]
    merged = {name: np.concatenate([table[name] for _, table in kept]) for name in names}
    return merged | {
        "replica": np.repeat([number for number, _ in kept], [len(table["start_ns"]) for _, table in kept])
    }


def _timeline(steps: Columns) -> dict[str, Int64Array]:
    names = [*KV_COLUMNS, *(["replica"] if "replica" in steps else [])]
    return {"time_ns": steps["start_ns"]} | {name: steps[name] for name in names}


def _per_request(replicas: Sequence[Replica], indices: Int64Array) -> dict[str, Int64Array] | None:
    """Return each request's time by cause; every replica knows of those that ended on it."""
    known = [each.recorder.attribution for each in replicas if each.recorder.attribution is not None]
    return _summed(attribution.table(indices) for attribution in known) if known else None


def _work(replicas: Sequence[Replica], wall_ns: int, levers: bool) -> dict[str, Any]:
    """Return what replicas did, added up, and what would have made the steps of all together shorter."""
    parts = [replica.accountant.work() for replica in replicas]
    bandwidths = [replica.kind.resolved.device.hbm_bandwidth for replica in replicas]
    work = _summed(parts) | {"elasticity": _elasticity(replicas) if levers else {}}
    if len(set(bandwidths)) > 1:
        read = zip(parts, bandwidths, strict=True)
        work["useful_hbm_seconds"] = sum(part["useful_hbm_bytes"] / bandwidth for part, bandwidth in read)
    if len({replica.kind for replica in replicas}) > 1:
        work["joule_total"] = _joule(replicas, parts, wall_ns)
    return work


def _joule(replicas: Sequence[Replica], parts: Sequence[Mapping[str, float]], wall_ns: int) -> float | None:
    """Return what the GPUs of replicas that differ drew, None where one's power is not known [J]."""
    total = 0.0
    for replica, part in zip(replicas, parts, strict=True):
        power, drawn = replica.kind.power, part.get("power_above_idle_s")
        if power is None or drawn is None:
            return None
        total += replica.kind.gpus * power.joule(wall_ns / 1e9, drawn)
    return total


def _elasticity(replicas: Sequence[Replica]) -> dict[str, float]:
    """Return lever -> share of busy time saved per share by which the lever grows, of the steps of all replicas.

    Of many replicas of a kind some are asked, evenly picked: each samples its own steps already.
    """
    asked: list[Replica] = []
    for kind in dict.fromkeys(replica.kind for replica in replicas):
        alike = [replica for replica in replicas if replica.kind is kind]
        asked += alike[:: -(-len(alike) // SAMPLED_REPLICAS)]
    found: dict[str, float] = {}
    total = sum(replica.recorder.busy_ns for replica in asked)
    for replica in asked:
        busy = replica.recorder.busy_ns
        for lever, saved in replica.accountant.elasticity(_rebuilding(replica)).items():
            found[lever] = found.get(lever, 0.0) + (saved if busy == total else saved * busy / total)
    return found


def _rebuilding(replica: Replica) -> Callable[[StepDevice], AnyStepModel]:
    resolved = replica.kind.resolved
    return lambda device: kept_step_model(resolved, device)


def _warnings(resolved: ResolvedScenario, replicas: Sequence[Replica], wall_ns: int) -> tuple[str, ...]:
    """Return what a reader should know, each said once however many replicas it holds for."""
    said = [*resolved.warnings, *([UNVALIDATED] if resolved.scenario.cluster.total > 1 else [])]
    said += [FAILING] if resolved.scenario.cluster.failures else []
    said += [SCALED] if resolved.scenario.cluster.autoscale else []
    said += [SPLIT] if resolved.scenario.cluster.pools else []
    for replica in replicas:
        own = replica.kind.resolved
        said += own.warnings if own is not resolved else ()
        said += replica.kind.pool.warnings
        said += warnings_of(own, replica.allocator, replica.kind.pool, wall_ns)
    for kind in dict.fromkeys(replica.kind for replica in replicas):
        device = cast("StepDevice", kind.resolved.device)
        said += unmeasured(device, kind.resolved.engine.lane, kind.model.plan)
        said += _cascade(kind, [replica for replica in replicas if replica.kind is kind])
    for replica in replicas:
        said += replica.scheduler.caveats()
    return tuple(dict.fromkeys(said))


def _cascade(kind: ReplicaKind, replicas: Sequence[Replica]) -> list[str]:
    """Say how often a batch's shared prefix was read once, where it may be."""
    if kind.resolved.scenario.kernels.disable_cascade_attn is not False:
        return []
    taken, steps = (
        sum(getattr(each.recorder, name) for each in replicas) for name in ("cascade_steps", "steps")
    )
    return [f"cascade attention was taken in {taken:,} of {steps:,} steps"]


def _outages_of(outages: Outages | None, replica: int, start_ns: int, end_ns: int) -> dict[str, Any]:
    """Return what the summary says of a replica's failures; its time down is idle time of its wall time."""
    if outages is None:
        return {}
    return {
        "failures": outages.failures(replica, end_ns),
        "down_s": outages.down_ns(replica, start_ns, end_ns) / 1e9,
        "requeued": outages.requeued[replica],
    }


def _figures_of(replica: Replica, served: Columns, pool: KVSums, wall_ns: int) -> dict[str, Any]:
    """Return what the summary says of one of several replicas."""
    kind, kv = replica.kind, pool.figures()
    ended = {status: int((served["status"] == status).sum()) for status in Status}
    queried = kv["prefix_queried_tokens"]
    return {
        "kind": kind.name,
        "device": kind.resolved.device.id,
        "gpus": kind.gpus,
        "requests": {
            "completed": ended[Status.COMPLETED],
            "rejected": ended[Status.REJECTED],
            "aborted": ended[Status.ABORTED],
            "preemptions": replica.recorder.preemptions,
        },
        "output_tokens": int(served["output_tokens"][served["status"] == Status.COMPLETED].sum()),
        "busy_share": replica.recorder.busy_ns / wall_ns if wall_ns else None,
        "kv": {
            "num_gpu_blocks": kv["num_gpu_blocks"],
            "peak_usage": kv["peak_usage"],
            "mean_usage": kv["mean_usage"],
            "prefix_hit_rate": kv["prefix_hit_tokens"] / queried if queried else None,
            **pool.behind,
        },
    }
