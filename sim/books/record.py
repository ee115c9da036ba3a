"""What the recorder keeps of one run: the record that every metric is computed from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..metrics.figures import Unknown
from ..metrics.histogram import LogHistogram

if TYPE_CHECKING:
    from ...hwmodels.pool import KVPool
    from ...hwmodels.power import PowerModel

Column = npt.NDArray[Any]

CAUSES: tuple[str, ...] = (
    "hbm_weights", "hbm_kv", "hbm_activations", "compute", "communication", "transfer", "latency", "launch",
    "host", "bubble", "idle",
)  # fmt: skip
"""What a nanosecond of a replica's wall time can be charged to; all but ``idle`` are busy time."""

LIMITERS: tuple[str, ...] = ("kv_blocks", "max_num_seqs", "token_budget", "arrivals")
"""What can keep a batch from being larger."""

REQUEST_COLUMNS: tuple[str, ...] = (
    "index", "arrival_ns", "first_scheduled_ns", "first_token_ns", "last_token_ns", "input_tokens",
    "output_tokens", "num_cached_tokens", "num_preemptions", "priority", "status", "slo_class", "session", "tenant",
    "reject_reason",
)  # fmt: skip
"""Columns of ``RunRecord.requests``; times are -1 where the event never came."""


@dataclass(frozen=True, slots=True)
class Setup:
    """Facts about what ran that the metrics need; None where nobody knows.

    Attributes
    ----------
    gpus_per_replica, replicas : GPUs of one engine (0 where they differ), and how many engines served side by side
    all_gpus : GPUs in all, where that is not their product
    mean_gpus : how many there were on average, where replicas came and went
    hbm_bandwidth : datasheet bandwidth of one GPU; None where they differ [B/s]
    power : what one GPU draws; None where its power limit is not known; of several kinds the least known
    usd_per_gpu_hour : price of one GPU, the mean over them [USD/h]
    price_source : where that price is from, with its date
    client_overhead_s : server and network time that a client sees on top of the engine's [s]
    max_num_seqs : most sequences the engine may run at once
    slo_classes : thresholds by class and metric [s], e.g. ``{"default": {"ttft_s": 0.5, "tpot_s": 0.05}}``
    slo_attainment : share of the requests that must meet theirs
    """

    gpus_per_replica: int = 1
    replicas: int = 1
    all_gpus: int | None = None
    mean_gpus: float | None = None
    hbm_bandwidth: float | None = None
    power: PowerModel | None = None
    usd_per_gpu_hour: float | None = None
    price_source: str | None = None
    client_overhead_s: float | None = None
    max_num_seqs: int | None = None
    slo_classes: Mapping[str, Mapping[str, float]] = field(default_factory=dict[str, Mapping[str, float]])
    slo_attainment: float | None = None

    @property
    def paid_gpus(self) -> float:
        """GPUs that were there, on average."""
        return self.gpus if self.mean_gpus is None else self.mean_gpus

    @property
    def gpus(self) -> int:
        """GPUs in all."""
        return self.gpus_per_replica * self.replicas if self.all_gpus is None else self.all_gpus


@dataclass(frozen=True, slots=True)
class RunRecord:
    """Everything the recorder kept of one run; whole numbers wherever a sum is printed.

    Attributes
    ----------
    requests : columns ``REQUEST_COLUMNS``, shape (n_requests,), in order of submission; of several replicas also
        ``replica``, where each ended; with pools ``prefill_replica``, and when KV was asked for, sent and had arrived
    slo_classes, reject_reasons : names that the codes of those columns stand for (reason -1: not rejected)
    causes_ns : wall time of all replicas by cause [ns]; every key of ``CAUSES``, summing to ``wall_ns``
    limiter_ns : busy time by what kept the batch from being larger [ns]; keys ``LIMITERS``, summing to
        ``busy_ns``
    wall_ns, busy_ns : time that the replicas existed, and that they had a step running, summed over them [ns]
    start_ns, end_ns : first arrival and last token [ns]
    itl : gaps between emissions, one for each emission after a request's first
    itl_by_position : sum of the gaps before output token p [ns] and their count, index p
    kv : ``peak_usage``, ``mean_usage``, ``internal_fragmentation``, ``external_fragmentation`` (fractions),
        ``prefix_queried_tokens``, ``prefix_hit_tokens``, ``preemptions``, ``num_gpu_blocks``; None if unknown;
        ``tiers`` and ``swap`` where there are any: what was found in each tier, what went in and out [B]
    work : sums over the run, of one GPU (the mean over a replica's): ``useful_flop_seconds`` (FLOP over the
        peak of the dtype used [s]), ``useful_hbm_bytes`` [B], ``kernel_busy_s``, ``sm_active_s``,
        ``tensor_active_s``, ``dram_active_s`` [s]; ``power_above_idle_s``, what steps drew above the idle board, in
        seconds at the power limit [s]; ``elasticity``: lever -> share of busy time saved per share by which the lever
        grows; of replicas that differ ``useful_hbm_seconds`` (bytes over the datasheet's bandwidth) [s], and
        ``joule_total`` of all GPUs [J]
    counts : ``steps``, ``jumps``, ``events``, ``empty_batches``, ``wasted_tokens``, ``late_tokens``
    steps : per-step columns, shape (n_steps,), where they were asked for
    kv_timeline : ``time_ns``, ``used_blocks``, ``held_blocks``, ``live_tokens`` at the start of every step, where
        they were kept
    per_request_causes : ``ttft`` and ``decode`` -> time by cause [ns], shape (n_requests, len(CAUSES))
    memory : how the KV pool was sized, or the ``memory`` object that says so
    speculative : what speculation did, under vLLM's names, and the share of busy time it drafted; None without
    provenance : ``version``, ``device``, ``device_hash``, ``model``, ``engine``, ``seed``, ``level``, ...
    warnings : what a reader should know before believing the figures
    scenario : the resolved scenario
    setup : prices, thresholds and hardware figures that metrics need
    intervals : metric by dotted name -> low and high, where draws were run
    draws : how many
    contention : how others on the same device slowed the steps (``sim.contention``); None where there were none
    monitored : what tools would show of a device that others used too, over the span of all; by name of ``utilization``
    beside : name -> what the summary says of it, of others that ran on the same device
    others : records of other models on the same device, each of its own requests and steps
    replicas : what the summary says of each replica; None where there is one
    requeued : requests given back by replicas that failed, each time counted; None where none could
    """

    requests: Mapping[str, Column]
    causes_ns: Mapping[str, int]
    limiter_ns: Mapping[str, int]
    wall_ns: int
    busy_ns: int
    start_ns: int
    end_ns: int
    itl: LogHistogram = field(default_factory=LogHistogram)
    itl_by_position: tuple[Column, Column] | None = None
    kv: Mapping[str, float | int | None] = field(default_factory=dict[str, "float | int | None"])
    work: Mapping[str, Any] = field(default_factory=dict[str, Any])
    counts: Mapping[str, int] = field(default_factory=dict[str, int])
    slo_classes: Sequence[str] = ("default",)
    reject_reasons: Sequence[str] = ()
    steps: Mapping[str, Column] | None = None
    kv_timeline: Mapping[str, Column] | None = None
    per_request_causes: Mapping[str, Column] | None = None
    memory: KVPool | Mapping[str, Any] | None = None
    speculative: Mapping[str, Any] | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict[str, Any])
    warnings: Sequence[str] = ()
    scenario: Any = None
    setup: Setup = field(default_factory=Setup)
    intervals: Mapping[str, tuple[float, float]] | None = None
    draws: int = 0
    contention: Mapping[str, Any] | None = None
    monitored: Mapping[str, float | Unknown] = field(default_factory=dict[str, "float | Unknown"])
    beside: Mapping[str, Any] = field(default_factory=dict[str, Any])
    others: tuple[RunRecord, ...] = ()
    replicas: Sequence[Mapping[str, Any]] | None = None
    requeued: int | None = None

    @property
    def n_requests(self) -> int:
        """Requests submitted."""
        return int(self.requests["index"].size)

    @property
    def duration_s(self) -> float:
        """First arrival to last token [s]."""
        return (self.end_ns - self.start_ns) / 1e9

    def with_status(self, status: int) -> npt.NDArray[np.bool_]:
        """Return which requests ended as ``status``, shape (n_requests,)."""
        return np.equal(self.requests["status"], int(status))
