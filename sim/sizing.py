"""How much KV cache a scenario gets, without running it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar, cast

from ..hwmodels.bareengine import BareEngine, parse_engine
from ..hwmodels.capacity import kv_pool
from ..hwmodels.device import load_device
from ..hwmodels.engine import load_engine
from ..hwmodels.errors import CapacityError, CatalogError
from ..hwmodels.hostlog import read_host
from ..hwmodels.model import load_model
from ..hwmodels.pool import KVPool, PoolSettings
from ..hwmodels.sizing import SizeReport
from .fields import AUTO, Auto
from .scenario.kvlevers import attention_of
from .scenario.resolve import draft_of, resolve

if TYPE_CHECKING:
    from ..hwmodels.memorylog import PrintedMemory
    from .scenario.schema import Scenario

T = TypeVar("T", int, float)


def size(scenario: Scenario, printed: PrintedMemory | None = None) -> SizeReport:
    """Size the KV pool of one replica; the scenario's load is not looked at.

    An engine version without a profile (``vllm-0.8.5``) is sized by the memory rules of that version.

    Parameters
    ----------
    scenario : device, model, engine, parallelism and settings
    printed : what the engine printed about its memory; each figure replaces what it would be computed from

    Raises
    ------
    MemboundError
        One line: an unknown device or model, a model that does not fit, ...

    Examples
    --------
    >>> from membound.sim.scenario import Scenario
    >>> size(Scenario(device="h100_sxm", model="llama-3.1-8b")).memory["num_gpu_blocks"]
    28034
    """
    scenario = _as_logged(scenario, printed)
    bare = _without_profile(scenario.engine)
    if bare is None:
        resolved = resolve(_without_load(scenario), "size")
        scenario = resolved.scenario
        device, engine, model = resolved.device, resolved.engine, resolved.model
        warnings = resolved.warnings
    else:
        device, engine, model = load_device(scenario.device), bare, load_model(scenario.model)
        warnings = (f"no profile of {bare.id}: only the memory rules of that version are known",)
    settings = replace(_settings(scenario, printed), draft=draft_of(scenario, model))
    ranks = scenario.parallelism
    pool = kv_pool(device, engine, model, ranks, settings)
    log = None if printed is None else read_host(device, engine, model, printed, ranks, settings)
    return SizeReport(_with_warnings(pool, warnings), log)


def _without_profile(name: str) -> BareEngine | None:
    """Return name and version of an engine that the catalogue lacks; None if it has it."""
    try:
        load_engine(name)
    except CatalogError:
        try:
            return parse_engine(name)
        except CapacityError:
            pass
        raise
    return None


def _as_logged(scenario: Scenario, printed: PrintedMemory | None) -> Scenario:
    """Return the scenario with the settings a log names in place of ``auto``."""
    if printed is None:
        return scenario
    cache = scenario.kv_cache
    said = {
        "max_model_len": printed.concurrency_length,
        "gpu_memory_utilization": printed.gpu_memory_utilization,
        "block_size": printed.block_size,
    }
    taken = {name: value for name, value in said.items() if value and getattr(cache, name) == AUTO}
    return scenario.model_copy(update={"kv_cache": cache.model_copy(update=taken)})


def _without_load(scenario: Scenario) -> Scenario:
    return scenario.model_copy(update={"workload": None})


def _settings(scenario: Scenario, printed: PrintedMemory | None) -> PoolSettings:
    """Return the settings that size a pool, those left on ``auto`` as None."""
    scheduler, cache, formats = scenario.scheduler, scenario.kv_cache, scenario.quantization
    return PoolSettings(
        gpu_memory_utilization=_given(cache.gpu_memory_utilization),
        max_num_seqs=_given(scheduler.max_num_seqs),
        max_num_batched_tokens=_given(scheduler.max_num_batched_tokens),
        max_model_len=_given(cache.max_model_len),
        block_size=_given(cache.block_size),
        kv_cache_dtype=formats.kv_cache,
        weights=formats.weights,
        num_gpu_blocks_override=cache.num_gpu_blocks_override,
        kv_cache_memory_bytes=cache.kv_cache_memory_bytes,
        reserve_bytes=cache.reserve_bytes,
        printed=printed,
        attention=attention_of(scenario),
    )


def _given(value: T | Auto) -> T | None:
    return None if value == AUTO else cast("T", value)


def _with_warnings(pool: KVPool, warnings: tuple[str, ...]) -> KVPool:
    return replace(pool, warnings=(*warnings, *pool.warnings))
