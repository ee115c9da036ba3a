"""One run: from a scenario to its result."""

from __future__ import annotations

import gc
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from ..hwmodels.capacity import kv_pool
from ..hwmodels.pipeline import PipelineStepModel
from ..hwmodels.pool import KVPool, PoolSettings
from ..hwmodels.power import PowerModel, power_model
from ..hwmodels.routing import routing_of
from ..hwmodels.speculation import SpeculativeStepModel
from ..hwmodels.stepmodel import StepModel
from ..hwmodels.unmeasured import unmeasured
from .accounting import StepAccountant
from .clock import Clock
from .draftaccounting import DraftAccountant, speculative_figures
from .engine import Engine
from .histogram import exact_dot
from .kvcache.base import KVAllocator, PoolShape
from .kvcache.paged import PagedAllocator
from .kvcache.ring import RingAllocator
from .offload import attach, figures_of, mover_of, warnings_of
from .pipeline import Pipeline
from .pipelineaccounting import PipelineAccountant
from .policies import find_policy, make_policy
from .record import CAUSES, RunRecord
from .recorder import Recorder
from .request import Request
from .result import SimulationResult
from .scenario.resolve import SCHEDULER_LIMITS, ResolvedScenario, resolve
from .setup import provenance_of, setup_of
from .source import Source
from .speculative import Speculation

if TYPE_CHECKING:
    from ..hwmodels.device import DeviceProfile
    from ..hwmodels.lanes import Lane
    from ..hwmodels.routing import Routing
    from ..hwmodels.steptypes import StepDevice
    from .accounting import AnyStepModel
    from .flight import StepTimer
    from .scenario.schema import Scenario
    from .scheduler.base import Scheduler
    from .workload.spec import ExpertRouting
    from .workload.workload import Workload

WASTES = ("waste", "waste_reserved", "waste_internal", "waste_external")
KV_COLUMNS = ("used_blocks", "held_blocks", "live_tokens", "kv_in_bytes", "kv_out_bytes")


def simulate(
    scenario: Scenario | ResolvedScenario,
    *,
    keep_steps: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> SimulationResult:
    """Run a scenario to its end.

    Parameters
    ----------
    scenario : the question, or the question with everything it names
    keep_steps : keep per-step columns for the result directory
    progress : called now and then with the requests that have ended, and all of them

    Raises
    ------
    MemboundError
        One line: the model does not fit, a policy is unknown, the trace cannot be read, ...
    """
    resolved = scenario if isinstance(scenario, ResolvedScenario) else resolve(scenario)
    workload = resolved.workload
    assert workload is not None
    pool = size_pool(resolved)
    lanes = LaneLog(resolved.device)
    model = step_model(resolved, cast("StepDevice", lanes))
    allocator = make_allocator(resolved, pool)
    scheduler = make_scheduler(resolved, model)
    accountant = make_accountant(model, keep_steps=keep_steps, power=power_model(resolved.device))
    recorder = Recorder(accountant, growth_tokens=allocator.growth_tokens, keep_steps=keep_steps)
    rules = run_engine(resolved, workload, scheduler, allocator, model, recorder, progress)
    record = make_record(resolved, pool, allocator, accountant, recorder, lanes.families, rules)
    derived = unmeasured(cast("StepDevice", resolved.device), resolved.engine.lane, model.plan)
    return SimulationResult(replace(record, warnings=(*record.warnings, *derived, *scheduler.caveats())))


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
            attention=scenario.kernels.attention,
            hybrid=True if cache.eviction else None,
        ),
    )


def step_model(resolved: ResolvedScenario, device: StepDevice | None = None) -> AnyStepModel:
    """Return the step model of a scenario, on its own device or on another."""
    scenario, workload, asked = resolved.scenario, resolved.scenario.workload, resolved.scenario.speculative
    target = (
        device or resolved.device,
        resolved.engine,
        resolved.model,
        scenario.parallelism,
        scenario.quantization,
    )
    sampling = workload.sampling if workload else "greedy"
    routing = _routing(workload.expert_routing) if workload else None
    eviction = resolved.kv_cache.eviction
    # Whoever evicts by attention needs its scores, which flash attention does not write.
    attention = "naive" if eviction and eviction.budget is not None else scenario.kernels.attention
    if scenario.parallelism.pipeline_parallel_size > 1:
        return PipelineStepModel(
            *target, sampling=sampling, routing=routing, attention=attention, networks=resolved.networks
        )
    if asked is None:
        return StepModel(*target, sampling=sampling, routing=routing, attention=attention)
    return SpeculativeStepModel(
        *target,
        num_speculative_tokens=asked.num_speculative_tokens,
        width=asked.width,
        draft=resolved.draft,
        sampling=sampling,
        routing=routing,
        attention=attention,
    )


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
    if cache.eviction and issubclass(policy, PagedAllocator) and RingAllocator.holds(pool):
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


def _prefill_ns(model: AnyStepModel) -> Callable[[int], int]:
    """Return what a prompt of so many tokens takes alone, in one step [ns]."""

    @lru_cache(maxsize=1 << 16)
    def alone(tokens: int) -> int:
        return model.step_ns(0, 0, 0, [(tokens, 0)], 1) if tokens > 1 else model.step_ns(1, 1, 1, [], 1)

    return alone


def run_engine(
    resolved: ResolvedScenario,
    workload: Workload,
    scheduler: Scheduler,
    allocator: KVAllocator,
    model: AnyStepModel,
    recorder: Recorder,
    progress: Callable[[int, int], None] | None = None,
) -> Speculation | None:
    """Serve a workload on one engine until every request has ended; return what speculation did."""
    env = Clock(0)
    ended, total = 0, len(workload)

    def on_finish(request: Request) -> None:
        nonlocal ended
        ended += 1
        if progress is not None and (ended % 1024 == 0 or ended == total):
            progress(ended, total)
        source.finished(request)

    engine = Engine(
        env,
        scheduler,
        allocator,
        cast("StepTimer", model),
        recorder,
        max_model_len=resolved.kv_cache.max_model_len,
        async_scheduling=resolved.scheduler.async_scheduling and scheduler.supports_async,
        fast_forward=resolved.scenario.simulation.fast_forward,
        on_finish=on_finish,
        mover=mover_of(allocator),
        speculation=(rules := speculation_of(resolved)),
        pipeline=Pipeline(model) if isinstance(model, PipelineStepModel) else None,
    )
    block_size = allocator.block_size if resolved.kv_cache.enable_prefix_caching else None
    requests = workload.iter_requests(block_size)
    source = Source(env, requests, engine.submit, workload.closed_loop, workload.follows)
    engine.connect(source)
    with _no_cycles():
        env.run()
    if ended != total:
        raise RuntimeError(f"{total - ended} of {total} requests were never served")
    recorder.close_books()
    return rules


@contextmanager
def _no_cycles() -> Generator[None]:
    """Pause the collector of reference cycles: a run makes none, and the search costs a tenth of its time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def make_record(
    resolved: ResolvedScenario,
    pool: KVPool,
    allocator: KVAllocator,
    accountant: StepAccountant,
    recorder: Recorder,
    families: Iterable[str],
    rules: Speculation | None = None,
    *,
    levers: bool = True,
) -> RunRecord:
    """Put together what is known of a finished run.

    Parameters
    ----------
    families : kernel families that the step model took
    rules : those of its speculation
    levers : work out what would have made the steps shorter; without, the verdict names no lever
    """
    requests = recorder.requests()
    start = int(requests["arrival_ns"].min())
    end = max(int(requests["last_token_ns"].max()), start)
    causes = dict.fromkeys(CAUSES, 0) | accountant.causes_ns
    causes["idle"] = (end - start) - recorder.busy_ns
    sums, counts = recorder.itl_by_position()
    steps = recorder.step_columns()
    return RunRecord(
        requests=requests,
        causes_ns=causes,
        limiter_ns=recorder.limiter_ns,
        wall_ns=end - start,
        busy_ns=recorder.busy_ns,
        start_ns=start,
        end_ns=end,
        itl=recorder.itl,
        itl_by_position=(sums, counts),
        kv=_kv_figures(pool, allocator, recorder, requests, end - start),
        work=accountant.work()
        | {
            "elasticity": accountant.elasticity(lambda device: step_model(resolved, device)) if levers else {}
        },
        counts={
            "steps": recorder.steps,
            "jumps": recorder.jumps,
            "events": recorder.steps - recorder.skipped_steps,
            "empty_batches": recorder.empty_batches,
            "wasted_tokens": recorder.wasted_tokens,
            "late_tokens": recorder.late_tokens,
        },
        slo_classes=tuple(recorder.slo_classes) or ("default",),
        reject_reasons=tuple(recorder.reject_reasons),
        steps=steps,
        kv_timeline={"time_ns": steps["start_ns"]} | {name: steps[name] for name in KV_COLUMNS}
        if steps
        else None,
        per_request_causes=recorder.attribution.table(requests["index"]) if recorder.attribution else None,
        memory=pool,
        speculative=speculative_figures(rules, accountant, recorder.busy_ns),
        provenance=provenance_of(resolved, families),
        warnings=(*resolved.warnings, *pool.warnings, *warnings_of(resolved, allocator, pool, end - start)),
        scenario=resolved.scenario,
        setup=setup_of(resolved),
    )


def _kv_figures(
    pool: KVPool,
    allocator: KVAllocator,
    recorder: Recorder,
    requests: Mapping[str, Any],
    wall_ns: int,
) -> dict[str, Any]:
    """Return how full the pool was and what of it was wasted; None where nothing was ever held."""
    blocks, size, held_ns = allocator.num_blocks, allocator.block_size, recorder.held_block_ns
    room_ns = blocks * wall_ns
    return {
        "peak_usage": recorder.peak_blocks / blocks if blocks else None,
        "mean_usage": recorder.used_block_ns / room_ns if room_ns else None,
        "internal_fragmentation": max(1 - recorder.live_token_ns / (held_ns * size), 0.0)
        if held_ns and allocator.keeps_all
        else None,
        "external_fragmentation": _scattered_block_ns(allocator, recorder) / room_ns if room_ns else None,
        **_waste(allocator, recorder, requests),
        "prefix_queried_tokens": allocator.queried_tokens,
        "prefix_hit_tokens": allocator.hit_tokens,
        "preemptions": recorder.preemptions,
        "num_gpu_blocks": pool.num_gpu_blocks,
        **figures_of(allocator, wall_ns),
    }


def _scattered_block_ns(allocator: KVAllocator, recorder: Recorder) -> int:
    """Return the room that was free while somebody waited whom it could not serve [blocks x ns]."""
    return allocator.num_blocks * recorder.limiter_ns["kv_blocks"] - recorder.short_used_block_ns


def _waste(
    allocator: KVAllocator, recorder: Recorder, requests: Mapping[str, Any]
) -> dict[str, float | None]:
    """Return which share of the room that was held, or free and no use, held no token, and why.

    Approximation: what is reserved counts from a request's first step to its last token; a request that is
    stopped in between counts as if it had held its room all the time.
    """
    size, live_ns = allocator.block_size, recorder.live_token_ns
    held_ns, scattered_ns = recorder.held_block_ns * size, _scattered_block_ns(allocator, recorder) * size
    taken_ns = held_ns + scattered_ns
    if not (taken_ns and allocator.keeps_all):
        return dict.fromkeys(WASTES)
    promised_ns = live_ns
    if allocator.reserves:
        served = requests["first_scheduled_ns"] >= 0
        needed = requests["input_tokens"] + requests["output_tokens"] - 1
        spans = requests["last_token_ns"] - requests["first_scheduled_ns"]
        bound = int(needed.max(initial=0)) * int(spans.sum())
        promised_ns = min(max(exact_dot(needed[served], spans[served], bound), live_ns), held_ns)
    return {
        "waste": max(1 - live_ns / taken_ns, 0.0),
        "waste_reserved": (promised_ns - live_ns) / taken_ns,
        "waste_internal": max((held_ns - promised_ns) / taken_ns, 0.0),
        "waste_external": scattered_ns / taken_ns,
    }


class LaneLog:
    """A device that notes which kernel families are asked of it."""

    def __init__(self, device: DeviceProfile) -> None:
        self._device = device
        self.families: set[str] = set()

    def lane(self, family: str, lane: str = "vllm") -> Lane:
        """Return a fitted lane of the device."""
        found = self._device.lane(family, lane)
        self.families.add(family)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)
