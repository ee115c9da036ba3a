"""How many KV blocks an engine gets on a card, with every term of the sum and where it comes from.

``kv_pool`` answers for vLLM (0.6 to 0.33), SGLang and TensorRT-LLM. Formulas, version switches and constants
are those of ``kv-pool.md``; sizes in bytes come from ``weights``, ``kvlayout`` and ``activations``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from .bareengine import EngineLike, engine_name, rules_of
from .device import DeviceProfile
from .errors import CapacityError
from .kvlayout import KVLayout
from .lowering import Parallelism, ParallelismLike
from .memorylog import PrintedMemory
from .memoryrules import MemoryRules
from .nofit import in_gib
from .otherpools import sglang_pool, tensorrt_llm_pool
from .pool import KVPool, PoolSettings, Source
from .spec import Attention, ModelSpec, MultiHeadLatentAttention
from .vllmpool import VllmCase


def kv_pool(
    device: DeviceProfile,
    engine: EngineLike,
    model: ModelSpec,
    parallelism: ParallelismLike | None = None,
    settings: PoolSettings | None = None,
) -> KVPool:
    """Size the KV pool of one replica.

    Figures the engine printed come first: blocks or tokens, then available bytes, then single terms; what was
    not printed is computed.

    Parameters
    ----------
    device : card of every rank
    engine : profile, or ``BareEngine(name, version)``
    model : the model
    parallelism : ranks; None is one
    settings : what the user set or the engine printed; None is the engine's defaults

    Raises
    ------
    CapacityError
        The model does not fit (the sum, term by term, in GiB, and the settings that would), or a setting is
        out of range.

    Examples
    --------
    >>> from membound.hwmodels.device import load_device
    >>> from membound.hwmodels.model import load_model
    >>> from membound.hwmodels.engine import load_engine
    >>> pool = kv_pool(load_device("h100_sxm"), load_engine("vllm-0.15"), load_model("llama-3.1-8b"))
    >>> pool.num_gpu_blocks
    26132
    """
    given = settings or PoolSettings()
    ranks = _ranks(parallelism)
    check_parallelism(model, ranks.tensor_parallel_size)
    name = engine_name(engine.engine)
    resolved = resolve(device, engine, model, given)
    if given.draft is not None and name != "vllm":
        raise CapacityError(
            f"speculative: what a draft takes of {engine.id}'s memory is not known; allowed: vLLM engines, or null"
        )
    if given.attention == "naive" and name != "vllm":
        raise CapacityError(
            f"kernels.attention: what naive attention, which eviction h2o needs too, takes of {engine.id}'s memory is "
            "not known; allowed: vLLM engines, or flash"
        )
    if given.reserve_bytes is not None and name != "vllm":
        raise CapacityError(f"kv_cache.reserve_bytes is a term of vLLM's sum; {engine.id} has none such")
    if name == "sglang":
        return sglang_pool(device, engine, model, ranks, resolved, given)
    if name == "tensorrt-llm":
        return tensorrt_llm_pool(device, engine, model, ranks, resolved, given)
    rules = rules_of(engine, flashinfer_sampler=given.flashinfer_sampler)
    return _vllm_pool(device, engine, model, ranks, resolved, rules)


def _ranks(parallelism: ParallelismLike | None) -> Parallelism:
    if parallelism is None:
        return Parallelism()
    return Parallelism(
        tensor_parallel_size=parallelism.tensor_parallel_size,
        pipeline_parallel_size=parallelism.pipeline_parallel_size,
        data_parallel_size=parallelism.data_parallel_size,
        expert_parallel=parallelism.expert_parallel,
    )


def check_parallelism(model: ModelSpec, tensor_parallel_size: int) -> None:
    """Refuse a tensor parallelism that does not divide the query heads.

    Raises
    ------
    CapacityError
        It does not; the nearest that does is named.
    """
    if tensor_parallel_size < 1:
        raise CapacityError(f"parallelism.tensor_parallel_size is {tensor_parallel_size}; allowed: 1 or more")
    heads = {m.n_heads for _, m in model.mixers() if isinstance(m, Attention | MultiHeadLatentAttention)}
    if all(n % tensor_parallel_size == 0 for n in heads):
        return
    allowed = [d for d in range(1, min(heads) + 1) if all(n % d == 0 for n in heads)]
    near = min(allowed, key=lambda d: abs(d - tensor_parallel_size))
    raise CapacityError(
        f"parallelism.tensor_parallel_size is {tensor_parallel_size}, which does not divide the "
        + f"{' or '.join(map(str, sorted(heads)))} query heads of {model.id}; nearest that does: {near}"
    )


def default_block_size(device: DeviceProfile, model: ModelSpec, *, expanded: bool = False) -> int:
    """Return the tokens a block that vLLM takes: 16, or what the card's latent kernel wants [tokens]."""
    latent = [m for _, m in model.mixers() if isinstance(m, MultiHeadLatentAttention)]
    if not latent or expanded:
        return 16
    if any(mixer.index_head_dim for mixer in latent) or device.arch == "Hopper":
        return 64
    return 128 if device.arch in ("Blackwell", "Blackwell Ultra") else 16


def resolve(device: DeviceProfile, engine: EngineLike, model: ModelSpec, given: PoolSettings) -> PoolSettings:
    """Fill what was not set with the engine's defaults on this card, and check the ranges.

    Raises
    ------
    CapacityError
        A setting out of range.
    """
    defaults = engine.resolve_defaults(device)
    vllm = engine_name(engine.engine) == "vllm"
    expanded = vllm and rules_of(engine).latent_expanded
    printed = given.printed
    share = given.gpu_memory_utilization
    if share is None and printed is not None:
        share = printed.gpu_memory_utilization
    block = given.block_size
    if block is None:
        block = (printed.block_size if printed else None) or default_block_size(
            device, model, expanded=expanded
        )
    filled = replace(
        given,
        gpu_memory_utilization=defaults.gpu_memory_utilization if share is None else share,
        max_num_seqs=defaults.max_num_seqs if given.max_num_seqs is None else given.max_num_seqs,
        max_num_batched_tokens=defaults.max_num_batched_tokens
        if given.max_num_batched_tokens is None
        else given.max_num_batched_tokens,
        max_model_len=_length(model, given),
        block_size=block,
    )
    _check(filled)
    return filled


def _length(model: ModelSpec, given: PoolSettings) -> int:
    """Return max_model_len: as set, else the length that a log's concurrency is for, else the model's [tokens]."""
    said = given.printed.concurrency_length if given.printed else None
    return given.max_model_len or said or model.max_position or 1


_LIMITS = (
    ("max_num_seqs", "scheduler.max_num_seqs"),
    ("max_num_batched_tokens", "scheduler.max_num_batched_tokens"),
    ("max_model_len", "kv_cache.max_model_len"),
    ("block_size", "kv_cache.block_size"),
    ("num_gpu_blocks_override", "kv_cache.num_gpu_blocks_override"),
    ("kv_cache_memory_bytes", "kv_cache_memory_bytes"),
    ("decode_context_parallel_size", "decode_context_parallel_size"),
    ("state_blocks", "state_blocks"),
)


def _check(settings: PoolSettings) -> None:
    for name, where in _LIMITS:
        value = cast("int | None", getattr(settings, name))
        if value is not None and value < 1:
            raise CapacityError(f"{where} is {value}; allowed: 1 or more")
    share = settings.gpu_memory_utilization or 0.0
    if not 0 < share <= 1:
        raise CapacityError(
            f"kv_cache.gpu_memory_utilization is {share:g}; allowed: above 0, at most 1 (a share)"
        )


def _vllm_pool(
    device: DeviceProfile,
    engine: EngineLike,
    model: ModelSpec,
    ranks: Parallelism,
    settings: PoolSettings,
    rules: MemoryRules,
) -> KVPool:
    printed = settings.printed or PrintedMemory()
    case = VllmCase(device, model, rules, printed.total_bytes or device.usable_bytes)
    if settings.kv_cache_memory_bytes is not None and not rules.takes_pool_bytes:
        raise CapacityError(
            f"kv_cache_memory_bytes is not known to {engine.id}; allowed: vLLM 0.11 and later"
        )
    stages, layout = case.stages(settings, ranks)
    if printed.kv_bytes is not None:
        stages = tuple(replace(stage, pool_bytes=printed.kv_bytes) for stage in stages)
    blocks, source = _blocks(settings, printed, layout, rules, min(stage.blocks for stage in stages))
    _check_card(settings, case.total_bytes, max(1, *(stage.bytes_per_block for stage in stages)), device.id)
    if source != "printed" and settings.num_gpu_blocks_override is None and blocks <= rules.null_blocks:
        raise case.refuse(settings, ranks)
    warnings = [*layout.notes, *printed.warnings, *case.memory_warnings(settings, stages)]
    fits = min(stage.blocks for stage in stages)
    if settings.num_gpu_blocks_override is not None and blocks > fits:
        warnings.append(f"num_gpu_blocks_override {blocks:,} is more than the {fits:,} blocks that fit")
    pool = KVPool.sized(
        device,
        engine,
        model,
        ranks,
        settings,
        total_bytes=case.total_bytes,
        budget_bytes=case.budget(settings),
        stages=stages,
        layout=layout,
        num_gpu_blocks=blocks,
        blocks_source=source,
        null_blocks=rules.null_blocks,
        # V0 gave each stage of a pipeline its own scheduler, and each scheduler its share of the blocks.
        split=ranks.pipeline_parallel_size if rules.scheduler == "v0" else 1,
        uncertainty_bytes=case.uncertainty(settings, source),
        warnings=tuple(warnings),
    )
    return replace(pool, warnings=(*pool.warnings, *length_warnings(pool)))


def _check_card(settings: PoolSettings, total_bytes: int, bytes_per_block: int, device: str) -> None:
    """Refuse a pool or a reserve that is set larger than the whole memory of the card [B]."""
    override = settings.num_gpu_blocks_override
    asked = {
        "kv_cache_memory_bytes": settings.kv_cache_memory_bytes,
        "reserve_bytes": settings.reserve_bytes,
        "num_gpu_blocks_override": None if override is None else override * bytes_per_block,
    }
    for name, size in asked.items():
        if size is not None and size > total_bytes:
            given = f"{override:,} blocks, " if name == "num_gpu_blocks_override" else ""
            most = f", {total_bytes // bytes_per_block:,} blocks" if given else ""
            raise CapacityError(
                f"kv_cache.{name}: {given}{in_gib(size)} GiB on {device}; allowed: at most its "
                f"{in_gib(total_bytes)} GiB{most}"
            )


def _blocks(
    settings: PoolSettings, printed: PrintedMemory, layout: KVLayout, rules: MemoryRules, computed: int
) -> tuple[int, Source]:
    """Choose the block count: what is set, then what is printed, then what is computed."""
    if settings.num_gpu_blocks_override is not None:
        return settings.num_gpu_blocks_override, "setting"
    if printed.num_gpu_blocks is not None:
        return printed.num_gpu_blocks, "printed"
    from_tokens = printed_blocks(printed, layout, rules, settings)
    if from_tokens is not None:
        return from_tokens, "printed"
    if printed.kv_bytes is not None:
        return computed, "printed"
    return computed, "setting" if settings.kv_cache_memory_bytes is not None else "formula"


def printed_blocks(
    printed: PrintedMemory, layout: KVLayout, rules: MemoryRules, settings: PoolSettings
) -> int | None:
    """Return the blocks behind a printed token count, None without one [blocks].

    To 0.20 the line is blocks / groups x block size; from 0.21 on it is concurrency x max_model_len.
    """
    tokens = printed.kv_tokens
    if tokens is None or not layout.block_tokens:
        return None
    whole = layout.block_tokens * layout.context_parallel
    if len(layout.groups) == 1:
        return tokens // whole
    if rules.token_line == "blocks":
        return tokens // whole * layout.n_groups
    length = printed.concurrency_length or settings.max_model_len or 1
    batched = settings.max_num_batched_tokens or 1
    return int(tokens / length * layout.request_blocks(length, batched))


def length_warnings(pool: KVPool) -> list[str]:
    """Warn where the pool, or the low end of its range, does not hold one request of max_model_len."""
    if pool.request_blocks > pool.usable_blocks // pool.split:
        size = in_gib(pool.request_blocks * pool.layout.bytes_per_block)
        held = in_gib(pool.usable_blocks * pool.layout.bytes_per_block)
        return [
            f"the pool ({held} GiB, {pool.usable_blocks:,} blocks) does not hold one request of "
            + f"max_model_len {pool.max_model_len:,} ({size} GiB, {pool.request_blocks:,} blocks) and the "
            + f"engine would not start; largest max_model_len that fits: {pool.largest_max_model_len:,}"
        ]
    low, _ = pool.blocks_range
    if pool.request_blocks > max(low - pool.null_blocks, 0) // pool.split:
        safe = pool.longest(max(low - pool.null_blocks, 0))
        return [
            f"one request of max_model_len {pool.max_model_len:,} takes {pool.request_blocks:,} of "
            + f"{pool.usable_blocks:,} blocks, more than the low end of the range ({low:,}): max_model_len "
            + f"{safe:,} is safe"
        ]
    return []


def fit_reserve(
    device: DeviceProfile,
    engine: EngineLike,
    model: ModelSpec,
    printed: PrintedMemory,
    parallelism: ParallelismLike | None = None,
    settings: PoolSettings | None = None,
) -> int:
    """Return non-torch growth and graphs together, fitted from what a vLLM host printed [B].

    Pass it on as ``PoolSettings(reserve_bytes=…)`` to ask about other settings on the same host.

    Parameters
    ----------
    device, engine, model, parallelism, settings : what that host ran
    printed : its log, with a block count, a token count or the available bytes

    Raises
    ------
    CapacityError
        The log names none of these, or more KV than the budget leaves after weights and activations.
    """
    ranks = _ranks(parallelism)
    bare = replace(settings or PoolSettings(), printed=printed, reserve_bytes=0)
    resolved = resolve(device, engine, model, bare)
    rules = rules_of(engine, flashinfer_sampler=bare.flashinfer_sampler)
    case = VllmCase(device, model, rules, printed.total_bytes or device.usable_bytes)
    stages, layout = case.stages(resolved, ranks)
    tightest = min(stages, key=lambda stage: stage.blocks)
    pool = printed.kv_bytes
    if pool is None:
        blocks = printed.num_gpu_blocks or printed_blocks(printed, layout, rules, resolved)
        if blocks is None:
            raise CapacityError(
                "the log names no pool to fit; allowed: available KV memory, blocks or tokens of the KV cache"
            )
        pool = blocks * tightest.bytes_per_block
    reserve = tightest.pool_bytes - pool
    if reserve < 0:
        raise CapacityError(
            f"the log gives KV {in_gib(pool)} GiB, more than the {in_gib(tightest.pool_bytes)} GiB left "
            + "after weights and activations: other card, version or settings than stated"
        )
    return reserve


def max_concurrency(tokens: float, length: float, replicas: int = 1) -> float:
    """Return the requests of ``length`` tokens that ``replicas`` pools of ``tokens`` tokens hold [requests].

    A latent is not divided by tensor parallelism, so data parallelism multiplies the pool and TP does not.
    """
    return replicas * tokens / length


def pool_tokens(stage_bytes: Sequence[float], stage_bytes_per_token: Sequence[float]) -> int:
    """Return the tokens of a pipeline: the fewest of its stages, each by its own layers [tokens]."""
    return min(
        int(size / per_token) for size, per_token in zip(stage_bytes, stage_bytes_per_token, strict=True)
    )
