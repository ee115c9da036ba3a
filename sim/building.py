"""From a resolved scenario to the parts of one engine: step model, KV pool, allocator, scheduler, accountant."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from ..hwmodels.capacity import kv_pool
from ..hwmodels.collectives import Collectives
from ..hwmodels.pipeline import PipelineStepModel
from ..hwmodels.pool import KVPool, PoolSettings
from ..hwmodels.routing import routing_of
from ..hwmodels.same import Same
from ..hwmodels.speculation import SpeculativeStepModel
from ..hwmodels.stepmodel import StepModel
from .books.accounting import StepAccountant
from .books.draftaccounting import DraftAccountant
from .books.pipelineaccounting import PipelineAccountant
from .engine.selection import PromptSelection
from .engine.speculative import Speculation
from .kvcache.base import KVAllocator, PoolShape
from .kvcache.paged import PagedAllocator
from .kvcache.radix import RadixAllocator
from .kvcache.ring import RingAllocator
from .policies import find_policy, make_policy
from .scenario.kvlevers import attention_of
from .scenario.parallel import machines_of, scattered_from
from .scenario.resolve import SCHEDULER_LIMITS, ResolvedScenario
from .tiers.offload import attach

if TYPE_CHECKING:
    from ..hwmodels.power import PowerModel
    from ..hwmodels.routing import Routing
    from ..hwmodels.steptypes import LaneLike, StepDevice
    from .books.accounting import AnyStepModel
    from .router.base import Router
    from .scheduler.base import Scheduler
    from .workload.spec import ExpertRouting


def size_pool(resolved: ResolvedScenario) -> KVPool:
    """Size the KV pool that a scenario gets."""
    scenario, scheduler, cache = resolved.scenario, resolved.scheduler, resolved.kv_cache
    return kv_pool(
        resolved.device,
        resolved.engine,
        resolved.model,
        scenario.parallelism,
        PoolSettings(
            gpu_memory_utilization=cache.gpu_memory_utilization,
            max_num_seqs=scheduler.max_num_seqs,
            max_num_batched_tokens=scheduler.max_num_batched_tokens,
            max_model_len=cache.max_model_len,
            block_size=cache.block_size,
            kv_cache_dtype=scenario.quantization.kv_cache,
            weights=scenario.quantization.weights,
            num_gpu_blocks_override=cache.num_gpu_blocks_override,
            kv_cache_memory_bytes=cache.kv_cache_memory_bytes,
            reserve_bytes=cache.reserve_bytes,
            draft=resolved.draft,
            attention=attention_of(scenario),
            hybrid=True if cache.eviction else None,
        ),
    )


def step_model(resolved: ResolvedScenario, device: StepDevice | None = None) -> AnyStepModel:
    """Return the step model of a scenario, on its own device or on another."""
    kind, target, options = _step_model_of(resolved)
    return kind(device or resolved.device, *target, **options)


def kept_step_model(resolved: ResolvedScenario, device: StepDevice | None = None) -> AnyStepModel:
    """Return ``step_model``, the same for scenarios that do not differ in it: what it has worked out is used again.

    Its own device is a `LaneLog`; another one is told apart by being equal or not.
    """
    kind, target, options = _step_model_of(resolved)
    engine, model, *settings = target
    key = (device or Same(resolved.device), kind, Same(engine), Same(model), *settings, *options.items())
    try:
        return _kept(key)
    except TypeError as error:
        if "unhashable" not in str(error):
            raise
        return kind(device or cast("StepDevice", LaneLog(resolved.device)), *target, **options)


@lru_cache(maxsize=32)
def _kept(key: tuple[Any, ...]) -> AnyStepModel:
    device, kind, engine, model, parallelism, quantization, *options = key
    if isinstance(device, Same):
        device = LaneLog(cast("Same[StepDevice]", device).it)
    return kind(device, engine.it, model.it, parallelism, quantization, **dict(options))


def _step_model_of(
    resolved: ResolvedScenario,
) -> tuple[Callable[..., AnyStepModel], tuple[Any, ...], dict[str, Any]]:
    """Return the kind of step model of a scenario, what it is of beside its device, and its options."""
    scenario, workload, asked = resolved.scenario, resolved.scenario.workload, resolved.scenario.speculative
    target = (resolved.engine, resolved.model, scenario.parallelism, scenario.quantization)
    eviction = resolved.kv_cache.eviction
    options: dict[str, Any] = {
        "sampling": workload.sampling if workload else "greedy",
        "routing": _routing(workload.expert_routing) if workload else None,
        "attention": attention_of(scenario),
        "collectives": collectives_of(resolved),
    }
    observation = eviction.latest if eviction and eviction.kind == "snapkv" else 0
    if scenario.parallelism.pipeline_parallel_size > 1:
        return (
            PipelineStepModel,
            target,
            options | {"networks": resolved.networks, "observation": observation},
        )
    options["fidelity"] = scenario.simulation.fidelity
    if asked is None:
        cascade = scenario.kernels.disable_cascade_attn is False
        return StepModel, target, options | {"observation": observation, "cascade": cascade}
    return (
        SpeculativeStepModel,
        target,
        options
        | {
            "num_speculative_tokens": asked.num_speculative_tokens,
            "width": asked.width,
            "draft": resolved.draft,
        },
    )


def collectives_of(resolved: ResolvedScenario) -> Collectives:
    """Return how the tensor-parallel groups of a scenario sum."""
    scenario, parallel = resolved.scenario, resolved.scenario.parallelism
    machine, network = machines_of(scenario)
    since = 0
    if parallel.enable_sp and parallel.tensor_parallel_size > 1:
        since = scattered_from(scenario, resolved.device, resolved.model) or 0
    return Collectives(
        halved=parallel.communication_overlap == "dual_batch",
        scattered_from=min(since, resolved.scheduler.max_num_batched_tokens),
        machine=machine,
        network=network,
    )


def selection_of(resolved: ResolvedScenario) -> PromptSelection | None:
    """Return the rule by which a scenario keeps part of its prompts' KV."""
    eviction = resolved.kv_cache.eviction
    if eviction is None or eviction.kind != "snapkv":
        return None
    share = None if eviction.budget is None else Fraction(eviction.budget).limit_denominator(1000)
    return PromptSelection(eviction.latest, share, eviction.max_capacity_prompt)


def speculation_of(resolved: ResolvedScenario) -> Speculation | None:
    """Return the rules of a scenario's speculation."""
    asked = resolved.scenario.speculative
    if asked is None:
        return None
    return Speculation(
        asked.survival,
        mode=asked.acceptance_mode,
        seed=resolved.scenario.simulation.seed,
        width=asked.width,
        lookahead=0 if resolved.draft is None else asked.num_speculative_tokens,
        disable_by_batch_size=asked.disable_by_batch_size,
    )


def make_accountant(
    model: AnyStepModel, *, keep_steps: bool = False, power: PowerModel | None = None
) -> StepAccountant:
    """Return what attributes the steps that a step model times."""
    if isinstance(model, PipelineStepModel):
        return PipelineAccountant(model, keep_steps=keep_steps, power=power)
    if isinstance(model, SpeculativeStepModel):
        return DraftAccountant(model, keep_steps=keep_steps, power=power)
    return StepAccountant(model, keep_steps=keep_steps, power=power)


def _routing(asked: ExpertRouting) -> Routing:
    """Return how tokens choose experts, as the scenario names it."""
    exponent = {"s": asked.s, "a": asked.alpha}
    return routing_of(asked.kind, **{name: value for name, value in exponent.items() if value is not None})


def make_allocator(resolved: ResolvedScenario, pool: KVPool) -> KVAllocator:
    """Return the allocator that a scenario names, over its pool."""
    cache = resolved.kv_cache
    policy = find_policy("kvcache", cache.allocator, "kv_cache.allocator")
    if cache.eviction and issubclass(policy, PagedAllocator | RadixAllocator) and RingAllocator.holds(pool):
        return RingAllocator.over(pool, cache.max_model_len)
    shape = pool_shape(pool)
    allocator: KVAllocator = policy.of(
        shape, max_model_len=cache.max_model_len, enable_prefix_caching=cache.enable_prefix_caching
    )
    attach(resolved, pool, shape, allocator)
    return allocator


def pool_shape(pool: KVPool) -> PoolShape:
    """Express a pool in the blocks that a sequence takes as it grows.

    Where layers cache in different ways, vLLM serves them from one pool: each group of layers takes blocks of
    its own. One block here stands for one block of every group that grows; what the others take (windows,
    recurrent states) is charged when the request is admitted.

    Approximation: a window is charged at what the whole sequence will need of it from the start, up to one
    window too much for a sequence that is still shorter.
    """
    layout, usable = pool.layout, pool.usable_blocks
    block_bytes = pool.tightest.bytes_per_block
    if len(layout.groups) == 1:
        copies = max(layout.groups[0].copies, 1)
        return PoolShape(
            usable // copies, pool.block_size * layout.context_parallel, block_bytes=copies * block_bytes
        )
    growing = sum(group.copies for group in layout.groups if group.kind == "full") or 1
    bounded = [group for group in layout.groups if group.kind != "full"]
    if len(bounded) == len(layout.groups):
        bounded = bounded[1:]

    def bounded_blocks(tokens: int) -> int:
        taken = sum(
            group.blocks(tokens, pool.max_num_batched_tokens, layout.context_parallel, layout.state_blocks)
            for group in bounded
        )
        return -(-taken // growing)

    size = next((group.block_tokens for group in layout.groups if group.kind == "full"), layout.block_tokens)
    return PoolShape(usable // growing, size * layout.context_parallel, bounded_blocks, growing * block_bytes)


def make_scheduler(resolved: ResolvedScenario, model: AnyStepModel | None = None) -> Scheduler:
    """Return the scheduler that a scenario names; ``model`` foretells prompts to those that ask."""
    settings = resolved.scheduler
    offered = {name: getattr(settings, name) for name in SCHEDULER_LIMITS} | {
        "max_model_len": resolved.kv_cache.max_model_len,
        "seed": resolved.scenario.simulation.seed,
        "slo_classes": resolved.slo_classes,
        "prefill_ns": None if model is None else _prefill_ns(model),
    }
    policy = find_policy("scheduler", settings.name, "scheduler.name")
    return make_policy(policy, offered, settings.options, "scheduler.options")


def make_router(resolved: ResolvedScenario, phase: str = "") -> Router:
    """Return the router that a scenario names: of all its replicas, or of the pool for a phase."""
    cluster = resolved.scenario.cluster
    name, options, where = cluster.router, cluster.router_options, "cluster"
    pool = getattr(cluster.pools, phase) if phase else None
    if pool is not None and pool.router is not None:
        name, options, where = pool.router, pool.router_options, f"cluster.pools.{phase}"
    policy = find_policy("router", name, f"{where}.router")
    return make_policy(
        policy, {"seed": resolved.scenario.simulation.seed}, options, f"{where}.router_options"
    )


def _prefill_ns(model: AnyStepModel) -> Callable[[int], int]:
    """Return what a prompt of so many tokens takes alone, in one step [ns]."""

    @lru_cache(maxsize=1 << 16)
    def alone(tokens: int) -> int:
        return model.step_ns(0, 0, 0, [(tokens, 0)], 1) if tokens > 1 else model.step_ns(1, 1, 1, [], 1)

    return alone


class LaneLog:
    """A device that notes which kernel families are asked of it."""

    def __init__(self, device: StepDevice) -> None:
        self._device = device
        self.families: set[str] = set()

    def fork(self) -> LaneLog:
        """Return a log of the same device that goes on by itself."""
        forked = LaneLog(self._device)
        forked.families |= self.families
        return forked

    def lane(self, family: str, lane: str = "vllm") -> LaneLike:
        """Return a fitted lane of the device."""
        found = self._device.lane(family, lane)
        self.families.add(family)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)
