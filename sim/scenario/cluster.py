"""The ``cluster`` section: several replicas, of one kind or of several, behind a router."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self, cast

from annotated_types import Gt, Le
from pydantic import AfterValidator, BeforeValidator, Field, model_serializer, model_validator

from ...hwmodels.errors import unknown
from ...hwmodels.units import Count, PositiveCount, Rate, RateBytes, Seconds, parse_count
from ..fields import AUTO, Section
from .device import Device
from .price import Price
from .sections import (
    Kernels,
    KVCacheSection,
    Node,
    Parallelism,
    QuantizationSection,
    SchedulerSection,
    Speculative,
)

MOST_REPLICAS = 4096
LONGEST_S = 1e9


def _router(value: str) -> str:
    from ..policies import policy_names

    names = policy_names("router")
    if value not in names and ":" not in value:
        raise ValueError(unknown("router", value, names) + "; or module:Class")
    return value


RouterName = Annotated[str, AfterValidator(_router)]


class ReplicaSettings(Section):
    """What is given here replaces what the scenario says, key by key; the rest is the same.

    Attributes
    ----------
    name : what they are called in results; default: their device
    device : their device
    engine : their serving engine
    model : their model
    parallelism : how one of them is spread over GPUs
    node : the machine around their GPUs
    quantization : their number formats
    kernels : which kernels they run
    scheduler : their scheduler
    kv_cache : their KV cache
    speculative : their speculative decoding
    price : what one of their GPUs costs
    """

    _about: ClassVar[tuple[str, ...]]
    """Keys that say something of the replicas together, how many first."""

    name: str | None = None
    device: Device | None = None
    engine: str | None = None
    model: str | None = None
    parallelism: Parallelism | None = None
    node: Node | None = None
    quantization: QuantizationSection | None = None
    kernels: Kernels | None = None
    scheduler: SchedulerSection | None = None
    kv_cache: KVCacheSection | None = None
    speculative: Speculative | None = None
    price: Price | None = None

    @model_serializer
    def _given(self) -> dict[str, Any]:
        """Return what was given: a default that is spelled out would replace what the scenario says."""
        return {name: _dumped(getattr(self, name)) for name in type(self).model_fields if self._has(name)}

    def _has(self, name: str) -> bool:
        return name in self.model_fields_set or name == self._about[0]

    def over(self, base: Mapping[str, Any]) -> dict[str, Any]:
        """Return the scenario of one of these replicas, given that of them all, as plain data."""
        own = {key: value for key, value in self._given().items() if key not in (*self._about, "name")}
        return _merged(base, own)


class ReplicaGroup(ReplicaSettings):
    """Replicas of one kind beside others: what is given here replaces what the scenario says, key by key.

    Attributes
    ----------
    count : how many
    name : what they are called in results; default: their device
    device, engine, model, parallelism, node, quantization, kernels, scheduler, kv_cache, speculative, price : theirs,
        where it is not as the scenario says
    """

    _about = ("count",)

    count: PositiveCount = 1


class ReplicaPool(ReplicaSettings):
    """Replicas for one of both phases: what is given here replaces what the scenario says, key by key.

    Attributes
    ----------
    replicas : how many
    router : how requests are spread over them; default: the cluster's
    router_options : further settings of that policy
    name : what they are called in results; default: their phase
    device, engine, model, parallelism, node, quantization, kernels, scheduler, kv_cache, speculative, price : theirs,
        where it is not as the scenario says
    """

    _about = ("replicas", "router", "router_options")

    replicas: Annotated[PositiveCount, Le(MOST_REPLICAS)] = 1
    router: RouterName | None = None
    router_options: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _options_of_its_own(self) -> Self:
        if self.router_options and self.router is None:
            raise ValueError("router_options go with a router of the pool's own; give router")
        return self


class Pools(Section):
    """Prefill and decode on replicas of their own, and the KV that goes from one to the other.

    A decode replica is chosen when a request arrives. A prompt is computed there itself if no more of it than
    ``max_local_prefill_length`` is not in that replica's prefix cache, or if the prefill replicas have
    ``max_prefill_queue_size`` requests; else on a prefill replica, which gives the first token.

    Attributes
    ----------
    prefill, decode : the replicas
    link : what KV goes over: network between machines (auto: that of ``node``), its name or the bandwidth of one GPU;
        node: all GPUs are in one machine
    max_local_prefill_length : tokens to compute up to which a prompt stays on its decode replica [tokens]
    max_prefill_queue_size : requests at the prefill replicas from which on prompts stay on their decode replica
    """

    prefill: ReplicaPool = ReplicaPool()
    decode: ReplicaPool = ReplicaPool()
    link: str = AUTO
    max_local_prefill_length: Count = 0
    max_prefill_queue_size: PositiveCount | None = None

    @property
    def total(self) -> int:
        """Replicas in all."""
        return self.prefill.replicas + self.decode.replicas


def _dumped(value: Any) -> Any:
    return value.model_dump(mode="json", exclude_unset=True) if isinstance(value, Section) else value


def _merged(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``base`` with the leaves of ``own`` in their place; a device is one leaf."""
    merged = dict(base)
    for key, value in own.items():
        known = merged.get(key)
        if key != "device" and isinstance(value, Mapping) and isinstance(known, Mapping):
            value = _merged(cast("Mapping[str, Any]", known), cast("Mapping[str, Any]", value))
        merged[key] = value
    return merged


def _replicas(value: object) -> object:
    return cast("object", value) if isinstance(value, list | tuple) else _count(value)


def _count(value: object) -> int:
    count = parse_count(value)
    if not 1 <= count <= MOST_REPLICAS:
        raise ValueError(f"{value!r} replicas; allowed: 1 to {MOST_REPLICAS}")
    return count


class TokenBucket(Section):
    """Requests that are let in on average, and at once.

    Attributes
    ----------
    rate_per_s : requests that are let in per second, on average
    burst : requests that are let in at once after a quiet time
    """

    rate_per_s: Rate
    burst: PositiveCount = 1


class Admission(Section):
    """What is turned away before it reaches a replica; rejections are counted by reason.

    Attributes
    ----------
    max_outstanding : requests sent to all replicas that have not ended; who comes then is rejected
    token_bucket : at most so many requests are let in per second; null: any number
    """

    max_outstanding: PositiveCount | None = None
    token_bucket: TokenBucket | None = None


class Outage(Section):
    """One failure of one replica.

    Attributes
    ----------
    replica : which one, from 0 in the order of the groups
    after : when it fails, from the start of the load
    lasts : how long it takes no requests, the loading of its weights included
    """

    replica: Count
    after: Annotated[Seconds, Le(LONGEST_S)]
    lasts: Annotated[Seconds, Gt(0), Le(LONGEST_S)]


class Failures(Section):
    """Replicas that fail and come back: drawn (``mtbf`` and ``mttr``), or given (``at``).

    Attributes
    ----------
    mtbf : mean time from when a replica is up to its next failure, exponential
    mttr : from a failure until its weights begin to be loaded again; their bytes over the host link come on top
    at : failures that are given one by one
    """

    mtbf: Annotated[Seconds, Gt(0), Le(LONGEST_S)] | None = None
    mttr: Annotated[Seconds, Le(LONGEST_S)] = 0.0
    at: tuple[Outage, ...] = ()

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.mtbf is None) == (not self.at):
            raise ValueError("give either mtbf (with mttr), or at: [{replica: 0, after: 60s, lasts: 30s}]")
        if self.at and "mttr" in self.model_fields_set and self.mttr:
            raise ValueError("mttr goes with mtbf; what is given with at says how long it lasts")
        ends: dict[int, float] = {}
        for each in sorted(self.at, key=lambda each: each.after):
            if each.after < ends.get(each.replica, 0.0):
                raise ValueError(
                    f"at: replica {each.replica} fails at {each.after:g} s, before it is up again"
                )
            ends[each.replica] = each.after + each.lasts
        return self


class Autoscale(Section):
    """Replicas that come and go with the load, as a Kubernetes autoscaler has them.

    Every so often the metric is looked at, and ``ready x metric / target`` replicas are wanted, rounded up, unless the
    metric is within a tenth of its target. Who is shut down takes no more requests and ends those it has.

    Attributes
    ----------
    min, max : replicas there are at least, and at most, those that start or end included
    metric : utilization: share of seats (``max_num_seqs``) or of KV blocks in use, the larger, mean over the replicas
        that are ready; outstanding: requests of a replica that have not ended, with those in line; slo: one replica
        more while fewer than ``slo.attainment`` of the requests that ended meet their thresholds, else one less
    target : of the metric; null: 0.7 of utilization; slo takes none, outstanding needs one
    every : time between two looks
    scale_down_after : the largest number wanted in this time is kept
    start_up : from the decision until weights begin to be loaded: a machine, a container, the engine's start
    storage_bandwidth : at which weights come to a replica; null: all GPUs over their host links [B/s]
    """

    min: Annotated[PositiveCount, Le(MOST_REPLICAS)] = 1
    max: Annotated[PositiveCount, Le(MOST_REPLICAS)]
    metric: Literal["utilization", "outstanding", "slo"] = "utilization"
    target: Annotated[float, Gt(0), Le(1e9)] | None = None
    every: Annotated[Seconds, Gt(0), Le(LONGEST_S)] = 15.0
    scale_down_after: Annotated[Seconds, Le(LONGEST_S)] = 300.0
    start_up: Annotated[Seconds, Le(LONGEST_S)] = 60.0
    storage_bandwidth: Annotated[RateBytes, Gt(0)] | None = None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min {self.min} is above max {self.max}")
        if self.metric == "slo" and self.target is not None:
            raise ValueError("metric slo takes no target; its own is slo.attainment")
        if self.metric == "outstanding" and self.target is None:
            raise ValueError("metric outstanding needs a target: requests of a replica")
        if self.metric == "utilization" and (self.target or 0.0) > 1.0:
            raise ValueError(f"target {self.target:g} of utilization; allowed: above 0 to 1")
        return self

    @property
    def wanted(self) -> float:
        """Target of the metric; of ``slo`` without meaning."""
        return 0.7 if self.target is None else self.target


class Cluster(Section):
    """Several replicas behind a router.

    Attributes
    ----------
    replicas : how many copies of the engine; or a list of groups, each with ``count`` and what it has of its own
        (``[{device: h100_sxm, count: 2}, {device: l40s, count: 4, scheduler: {max_num_seqs: 64}}]``)
    router : how requests are spread over them: a policy of this package, or ``module:Class``
    router_options : further settings of that policy, as its class describes them (``cache_threshold`` of
        ``prefix_affinity``, ...)
    admission : what is turned away before it reaches a replica
    pools : replicas for prefill and for decode, and the link between, in place of ``replicas``
    autoscale : replicas that come and go with the load; ``replicas`` are there at first
    failures : replicas that fail and come back; what they were at is routed again
    """

    replicas: Annotated[
        int | Annotated[tuple[ReplicaGroup, ...], Field(min_length=1)], BeforeValidator(_replicas)
    ] = 1
    router: RouterName = "least_outstanding"
    router_options: dict[str, Any] = Field(default_factory=dict)
    admission: Admission | None = None
    pools: Pools | None = None
    autoscale: Autoscale | None = None
    failures: Failures | None = None

    @model_validator(mode="after")
    def _so_many(self) -> Cluster:
        if self.pools is not None and self.replicas != 1:
            raise ValueError(
                "replicas beside pools; allowed: how many each of pools.prefill and pools.decode has"
            )
        scale = self.autoscale
        if scale is not None and not scale.min <= self.total <= scale.max:
            raise ValueError(
                f"replicas {self.total} at first; allowed: autoscale.min to autoscale.max, {scale.min} to {scale.max}"
            )
        if self.total > MOST_REPLICAS:
            raise ValueError(f"{self.total} replicas in all groups; allowed: 1 to {MOST_REPLICAS}")
        return self

    @property
    def total(self) -> int:
        """Replicas in all."""
        if self.pools is not None:
            return self.pools.total
        return (
            self.replicas if isinstance(self.replicas, int) else sum(group.count for group in self.replicas)
        )
