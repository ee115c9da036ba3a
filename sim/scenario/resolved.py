"""A scenario with everything it names: what the simulator runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...hwmodels.device import DeviceProfile
    from ...hwmodels.drafting import Draft
    from ...hwmodels.engine import EngineProfile
    from ...hwmodels.model import ModelSpec
    from ...hwmodels.timing.hop import Network
    from ..workload.workload import Workload
    from .schema import Scenario
    from .sections import Eviction


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """The scheduler section without ``auto``; see `SchedulerSection`."""

    name: str
    scheduling_policy: str
    max_num_seqs: int
    max_num_batched_tokens: int
    enable_chunked_prefill: bool
    long_prefill_token_threshold: int
    scheduler_reserve_full_isl: bool
    watermark: float
    async_scheduling: bool
    preemption_mode: str
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class KVCacheSettings:
    """The KV cache section without ``auto``; see `KVCacheSection`."""

    allocator: str
    block_size: int
    gpu_memory_utilization: float
    enable_prefix_caching: bool
    max_model_len: int
    num_gpu_blocks_override: int | None
    kv_cache_memory_bytes: int | None
    reserve_bytes: int | None
    eviction: Eviction | None


@dataclass(frozen=True, slots=True)
class Group:
    """Replicas of one kind.

    Attributes
    ----------
    name : what they are called in results
    resolved : the scenario of one of them
    count : how many
    """

    name: str
    resolved: ResolvedScenario
    count: int


@dataclass(frozen=True, slots=True)
class ResolvedScenario:
    """A scenario with everything it names.

    Attributes
    ----------
    scenario : the scenario with every ``auto`` replaced by the value taken
    device, engine, model : what it names
    scheduler, kv_cache : their sections, typed without ``auto``
    workload : the requests; None where the scenario was resolved for sizing only
    draft : what drafts on the device; None without speculation, or where the host looks drafts up
    networks : what each pipeline stage but the last has between itself and the next; None: the link of the machine
    groups : replicas that differ from it, and from each other; empty where all are as it says
    colocated : the second model on the same device
    slo_classes : class to metric to threshold [s]
    usd_per_gpu_hour : what a GPU costs [USD/h], None where unknown
    price_note : where that figure is from
    warnings : what a user should know, one line each
    """

    scenario: Scenario
    device: DeviceProfile
    engine: EngineProfile
    model: ModelSpec
    scheduler: SchedulerSettings
    kv_cache: KVCacheSettings
    workload: Workload | None
    slo_classes: Mapping[str, Mapping[str, float]]
    usd_per_gpu_hour: float | None
    price_note: str
    warnings: tuple[str, ...]
    draft: Draft | None = None
    networks: tuple[Network | None, ...] = ()
    groups: tuple[Group, ...] = ()
    colocated: ResolvedScenario | None = None

    @property
    def kinds(self) -> tuple[Group, ...]:
        """The replicas that serve, kind by kind; the scenario itself where they are all as it says."""
        return self.groups or (Group(self.device.id, self, self.scenario.cluster.total),)
