"""KV pools of SGLang and TensorRT-LLM, by their own rules: read in their sources, not validated enough."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from .activations import forward_bytes
from .bareengine import EngineLike
from .device import DeviceProfile
from .errors import CapacityError
from .kvlayout import KVLayout, kv_layout
from .lowering import Parallelism
from .memorylog import PrintedMemory
from .memoryrules import CONTEXT_GIB, GIB, NCCL_GIB, NON_TORCH_GIB
from .nofit import in_gib, sum_of_terms
from .pool import KVPool, PoolSettings, PoolStage, Source, Term
from .spec import ModelSpec
from .stages import stage_layers
from .vllmpool import is_wide
from .weights import WeightShard, weight_shards

MIB = 1 << 20
DRIVER_MIB = 550
"""What nvidia-smi shows above the total that CUDA reports [MiB]."""
UNVALIDATED_GIB = 2.0
"""Half width stated for rules that were read but not checked [GiB]."""
TOKENS_PER_BLOCK = 32
"""TensorRT-LLM's block in its PyTorch flow (64 in older engines) [tokens]."""

_SGLANG_CARDS = ((20, 2048, 8, 8), (35, 2048, 24, 80), (60, 4096, 32, 160), (160, 8192, 256, 512))


def sglang_limits(total_bytes: int, tensor_parallel_size: int) -> tuple[int, int]:
    """Return SGLang's default (chunked_prefill_size, cuda_graph_max_bs) for a card.

    >>> sglang_limits(80 << 30, 1)
    (8192, 256)
    """
    for below, chunk, graphs, graphs_tp4 in _SGLANG_CARDS:
        if total_bytes < below * GIB:
            return chunk, graphs_tp4 if tensor_parallel_size >= 4 else graphs
    return 16384, 512


def sglang_fraction(total_bytes: int, ranks: Parallelism, chunk: int, graph_batch: int) -> float:
    """Return SGLang's default mem_fraction_static [-] (0.5.6, ``server_args.py``).

    Parameters
    ----------
    total_bytes : what CUDA reports as total [B]
    ranks : tensor and pipeline parallelism
    chunk, graph_batch : chunked_prefill_size [tokens] and cuda_graph_max_bs
    """
    shown = total_bytes / MIB + DRIVER_MIB
    parallel = ranks.tensor_parallel_size * ranks.pipeline_parallel_size
    reserve = 512 + 1.5 * max(chunk, 2048) + 2 * graph_batch + 128 * parallel
    if shown > 60 * 1024:
        reserve = max(reserve, 10240)
    return round((shown - reserve) / shown, 3)


def sglang_pool(
    device: DeviceProfile,
    engine: EngineLike,
    model: ModelSpec,
    ranks: Parallelism,
    resolved: PoolSettings,
    given: PoolSettings,
) -> KVPool:
    """Size SGLang's pool: mem_fraction_static of the free memory before loading, less the weights.

    There is no profile run: max_num_seqs and the vocabulary do not matter.

    Raises
    ------
    CapacityError
        The weights exceed the static fraction.
    """
    total = _total(device, given)
    chunk, graph_batch = sglang_limits(total, ranks.tensor_parallel_size)
    fraction = given.gpu_memory_utilization or sglang_fraction(total, ranks, chunk, graph_batch)
    # The free memory is read once the communicators are up.
    budget = int((total - int(CONTEXT_GIB * GIB) - _communicators(device, ranks)) * fraction)
    settings = replace(
        resolved,
        gpu_memory_utilization=fraction,
        max_num_batched_tokens=given.max_num_batched_tokens or chunk,
        block_size=given.block_size or 1,
    )

    def terms(shard: WeightShard) -> tuple[Term, ...]:
        return (_weights_term(shard, given.printed),)

    return _compose(device, engine, model, ranks, settings, total, budget, terms, lambda rest: rest)


def tensorrt_llm_pool(
    device: DeviceProfile,
    engine: EngineLike,
    model: ModelSpec,
    ranks: Parallelism,
    resolved: PoolSettings,
    given: PoolSettings,
) -> KVPool:
    """Size TensorRT-LLM's pool (PyTorch flow): a share, 0.9 by default, of what a dry run leaves of the card.

    Raises
    ------
    CapacityError
        Nothing is left.
    """
    total = _total(device, given)
    fraction = given.gpu_memory_utilization or 0.9
    tokens = given.max_num_batched_tokens or 8192
    printed_block = given.printed.block_size if given.printed else None
    settings = replace(
        resolved,
        gpu_memory_utilization=fraction,
        max_num_batched_tokens=tokens,
        block_size=given.block_size or printed_block or TOKENS_PER_BLOCK,
    )
    size = int(NON_TORCH_GIB.get(device.arch, NON_TORCH_GIB["Hopper"]) * GIB)
    forward = forward_bytes(model, tokens, ranks.tensor_parallel_size, expert_parallel=ranks.expert_parallel)

    def terms(shard: WeightShard) -> tuple[Term, ...]:
        return (
            _weights_term(shard, given.printed),
            Term("activations", forward, "formula", f"dry run of {tokens:,} tokens"),
            Term("non_torch", size, "constant", "modules and library handles, as under vLLM"),
            Term("nccl", _communicators(device, ranks), "constant", "communicators"),
            Term("context", int(CONTEXT_GIB * GIB), "constant", "inside the peak of the dry run"),
        )

    def share(rest: int) -> int:
        return int(rest * fraction)

    return _compose(device, engine, model, ranks, settings, total, total, terms, share)


def free_fraction_blocks(
    free_bytes: float, fraction: float, bytes_per_token: float, block_tokens: int
) -> int:
    """Return TensorRT-LLM's block count for free memory that it printed [blocks].

    >>> free_fraction_blocks(21.89 * GIB, 0.9, 2 * 32 * 32 * 128 * 2, 64)
    630
    """
    return int(free_bytes * fraction / (bytes_per_token * block_tokens))


def _communicators(device: DeviceProfile, ranks: Parallelism) -> int:
    """Bytes of the communicators of a tensor-parallel group, as seen under vLLM [B]."""
    if ranks.tensor_parallel_size == 1:
        return 0
    return int(NCCL_GIB["pcie" if device.link_type.lower().startswith("pcie") else "nvlink"] * GIB)


def _total(device: DeviceProfile, given: PoolSettings) -> int:
    printed = given.printed.total_bytes if given.printed else None
    return printed or device.usable_bytes


def _weights_term(shard: WeightShard, printed: PrintedMemory | None) -> Term:
    if printed is not None and printed.weights_bytes is not None:
        return Term("weights", printed.weights_bytes, "printed")
    return Term("weights", shard.total, "formula", "parameters as stored")


def _compose(
    device: DeviceProfile,
    engine: EngineLike,
    model: ModelSpec,
    ranks: Parallelism,
    settings: PoolSettings,
    total: int,
    budget: int,
    terms: Callable[[WeightShard], tuple[Term, ...]],
    share: Callable[[int], int],
) -> KVPool:
    """Build the pool of an engine whose rule is a budget, some terms, and a share of the rest."""
    layout = kv_layout(
        model,
        kv_cache_dtype=settings.kv_cache_dtype,
        block_size=settings.block_size or 1,
        tensor_parallel_size=ranks.tensor_parallel_size,
        pipeline_parallel_size=ranks.pipeline_parallel_size,
        pipeline_partition=settings.pipeline_partition,
    )
    shards = weight_shards(
        model,
        weights=settings.weights,
        tensor_parallel_size=ranks.tensor_parallel_size,
        pipeline_parallel_size=ranks.pipeline_parallel_size,
        pipeline_partition=settings.pipeline_partition,
        data_parallel_size=ranks.data_parallel_size,
        expert_parallel=ranks.expert_parallel,
    )
    held = stage_layers(model, ranks.pipeline_parallel_size, settings.pipeline_partition)
    stages: list[PoolStage] = []
    for shard, layers, block in zip(shards, held, layout.stage_bytes_per_block, strict=True):
        parts = terms(shard)
        rest = budget - sum(term.bytes for term in parts)
        stages.append(PoolStage(len(layers), shard, parts, share(rest), block))
    printed = settings.printed or PrintedMemory()
    if printed.kv_bytes is not None:
        stages = [replace(stage, pool_bytes=printed.kv_bytes) for stage in stages]
    blocks, source = _printed_or_computed(printed, layout, min(stage.blocks for stage in stages))
    if blocks < 1:
        worst = min(stages, key=lambda stage: stage.pool_bytes)
        raise CapacityError(
            f"{model.id} does not fit {device.id} under {engine.id}: {sum_of_terms(worst.terms)}, against a "
            + f"budget of {in_gib(budget)} GiB of {in_gib(total)}; raise tensor_parallel_size or quantize"
        )
    return KVPool.sized(
        device,
        engine,
        model,
        ranks,
        settings,
        total_bytes=total,
        budget_bytes=budget,
        stages=tuple(stages),
        layout=layout,
        num_gpu_blocks=settings.num_gpu_blocks_override or blocks,
        blocks_source="setting" if settings.num_gpu_blocks_override else source,
        uncertainty_bytes=0
        if source == "printed" or settings.num_gpu_blocks_override
        else _uncertainty(engine, model),
        warnings=(
            *layout.notes,
            *printed.warnings,
            f"{engine.id}: rules read, not validated on enough machines",
        ),
    )


def _uncertainty(engine: EngineLike, model: ModelSpec) -> int:
    """Half width of a pool whose rules were read but not checked [B]."""
    stated = engine.capacity.uncertainty_gib if engine.capacity else {}
    return int(stated.get("other" if is_wide(model) else "dense", UNVALIDATED_GIB) * GIB)


def _printed_or_computed(printed: PrintedMemory, layout: KVLayout, computed: int) -> tuple[int, Source]:
    if printed.num_gpu_blocks is not None:
        return printed.num_gpu_blocks, "printed"
    if printed.kv_tokens is not None and layout.block_tokens:
        return printed.kv_tokens // layout.block_tokens, "printed"
    return computed, "printed" if printed.kv_bytes is not None else "formula"
