"""The answer in words: what bounds the run, what limits its batch, and what would help next."""

from __future__ import annotations

from collections.abc import Mapping

from ..books.record import CAUSES, RunRecord
from .figures import Figures, Unknown
from .latency import completed
from .metrics import limiter_share, mean_running, request_counts
from .stability import Stability, stability

BOUNDS: Mapping[str, tuple[str, ...]] = {
    "memory": ("hbm_weights", "hbm_kv", "hbm_activations"),
    "compute": ("compute",),
    "communication": ("communication",),
    "transfer": ("transfer",),
    "overhead": ("latency", "launch", "host"),
    "bubble": ("bubble",),
}
"""What a run can be bound by, and the causes of busy time that count towards it."""

CAUSE_WORDS: Mapping[str, str] = {
    "hbm_weights": "reading weights from HBM",
    "hbm_kv": "reading the KV cache from HBM",
    "hbm_activations": "moving activations through HBM",
    "compute": "computing",
    "communication": "communication between GPUs",
    "transfer": "KV transfers",
    "latency": "fixed times inside kernels",
    "launch": "launching kernels",
    "host": "host work between steps",
    "bubble": "pipeline bubbles and imbalance",
}
BOUND_WORDS: Mapping[str, str] = {"memory": "HBM", "overhead": "overheads"}
LIMITER_WORDS: Mapping[str, str] = {
    "kv_blocks": "KV blocks",
    "max_num_seqs": "max_num_seqs",
    "token_budget": "the token budget",
    "arrivals": "arrivals",
}
LEVER_WORDS: Mapping[str, str] = {
    "hbm_bandwidth": "HBM bandwidth",
    "peak_flops": "compute rate",
    "link_bandwidth": "link bandwidth",
    "kv_blocks": "KV blocks",
}
MOSTLY_IDLE = 0.5


def bound(record: RunRecord) -> str | None:
    """Return the group of ``BOUNDS`` with the largest share of busy time; None if nothing ran."""
    totals = {name: sum(int(record.causes_ns.get(c, 0)) for c in causes) for name, causes in BOUNDS.items()}
    largest = max(totals, key=lambda name: totals[name])
    return largest if totals[largest] > 0 else None


def largest_cause(record: RunRecord) -> str:
    """Return the single cause with the most busy time; the first of ``CAUSES`` among equals."""
    return max((c for c in CAUSES if c != "idle"), key=lambda c: int(record.causes_ns.get(c, 0)))


def idle_share(record: RunRecord) -> float:
    """Return the idle share of the replicas' wall time."""
    return int(record.causes_ns.get("idle", 0)) / record.wall_ns if record.wall_ns > 0 else 0.0


def next_lever(record: RunRecord) -> str | Unknown:
    """Return the lever whose growth saves most busy time, from the local elasticity of the steps that ran."""
    elasticity: Mapping[str, float] | None = record.work.get("elasticity")
    if not elasticity:
        return Unknown("the local elasticity of the steps that ran was not computed")
    lever = max(sorted(elasticity), key=lambda name: elasticity[name])
    return lever if elasticity[lever] > 0 else Unknown("no lever at hand saves busy time")


def verdict(record: RunRecord, state: Stability | None = None) -> Figures:
    """Return what bounds the run, one sentence, the next lever, and whether the run was in a steady state.

    ``state`` is the run's ``stability``, where the caller has it already.
    """
    lever, state = next_lever(record), state or stability(record)
    held = bound(record)
    return {
        "bound": Unknown("no step ran") if held is None else held,
        "sentence": sentence(record, held, lever, state),
        "next_lever": lever,
        "stability": state.state,
    }


def sentence(record: RunRecord, held: str | None, lever: str | Unknown, state: Stability) -> str:
    """Return the verdict as one sentence for a serving engineer.

    It names what bounds the run and the largest cause of *busy* time; what limits the batch; how much of the
    time the GPU idles; what was rejected; the next lever; and first or last that the run was no steady state.
    """
    if held is None:
        return f"nothing ran: {_outcome(record)}"
    parts = [_causes(record, held), _limit(record), _idle(record), _rejections(record), _lever(record, lever)]
    said = "; ".join(part for part in parts if part)
    if idle_share(record) > MOSTLY_IDLE:
        said = f"mostly idle, and while busy {said}"
    if state.steady:
        return said
    if state.state == "unstable":
        return f"unstable: {state.reason}, so mean latencies grow with the length of the run; {said}"
    return f"{said}; not a steady state: {state.reason}"


def _causes(record: RunRecord, held: str) -> str:
    """Say what bounds the run, and the largest cause of busy time."""
    busy = sum(int(record.causes_ns.get(c, 0)) for c in CAUSES if c != "idle")
    in_group = sum(int(record.causes_ns.get(c, 0)) for c in BOUNDS[held]) / busy
    cause = largest_cause(record)
    share = int(record.causes_ns.get(cause, 0)) / busy
    opening = "bound by overheads" if held == "overhead" else f"{held}-bound"
    if cause not in BOUNDS[held]:
        group = BOUND_WORDS.get(held, CAUSE_WORDS.get(held, held))
        most = f"the largest single cause is {CAUSE_WORDS[cause]}, {_percent(share)}"
        return f"{opening}: {_percent(in_group)} of busy time goes to {group} ({most})"
    in_all = (
        f" ({_percent(in_group)} to {BOUND_WORDS.get(held, held)} in all)"
        if in_group - share >= 0.005
        else ""
    )
    return f"{opening}: {_percent(share)} of busy time goes to {CAUSE_WORDS[cause]}{in_all}"


def _limit(record: RunRecord) -> str:
    """Say what kept the batch from being larger, and how large it was."""
    shares = {name: share for name, share in limiter_share(record).items() if isinstance(share, float)}
    if not shares:
        return ""
    limiter = max(shares, key=lambda name: shares[name])
    often = "" if shares[limiter] >= 0.995 else f" {_percent(shares[limiter])} of busy time"
    return (
        f"the batch is limited by {LIMITER_WORDS[limiter]}{often}{_batch(record)}{_pressure(record, limiter)}"
    )


def _batch(record: RunRecord) -> str:
    running = mean_running(record)
    if not running:
        return ""
    most = record.setup.max_num_seqs
    return (
        f" (mean {running:.1f} sequences)" if most is None else f" (mean {running:.1f} of {most} sequences)"
    )


def _pressure(record: RunRecord, limiter: str) -> str:
    """Say how often requests were preempted, where KV blocks are short."""
    preemptions = request_counts(record)["preemptions"]
    return f", {_many(preemptions, 'preemption')}" if limiter == "kv_blocks" and preemptions else ""


def _idle(record: RunRecord) -> str:
    idle = idle_share(record)
    return f"GPU idle {_percent(idle)} of the time" if idle >= 0.005 else "GPU never idle"


def _rejections(record: RunRecord) -> str:
    rejected = request_counts(record)["rejected"]
    return f"{rejected} of {_many(record.n_requests, 'request')} rejected" if rejected else ""


def _lever(record: RunRecord, lever: str | Unknown) -> str:
    if isinstance(lever, Unknown):
        return ""
    words = LEVER_WORDS.get(lever, lever.replace("_", " "))
    saved = f"{record.work['elasticity'][lever] * 10:.1f} %"
    return f"next lever: {words} (10 % more saves {saved} of busy time)"


def _outcome(record: RunRecord) -> str:
    counts = request_counts(record)
    if record.n_requests == 0:
        return "no request was submitted"
    if counts["rejected"] == record.n_requests:
        return f"all {_many(record.n_requests, 'request')} were rejected"
    return f"{int(completed(record).sum())} of {_many(record.n_requests, 'request')} completed"


def _percent(share: float) -> str:
    return f"{share * 100:.0f} %" if share >= 0.095 or share == 0 else f"{share * 100:.1f} %"


def _many(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"
