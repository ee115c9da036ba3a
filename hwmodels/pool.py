"""The KV pool of one replica: what it is made of, how many requests it holds, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from .bareengine import EngineLike
from .device import DeviceProfile
from .drafting import Draft
from .kvcaches import kv_dtype
from .kvlayout import KVLayout
from .lowering import Parallelism
from .memorylog import PrintedMemory
from .spec import ModelSpec
from .weightformat import stored_format
from .weights import WeightShard

GIB = 1 << 30

Source = Literal["printed", "formula", "constant", "setting"]


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """What a user may set; None leaves it to the engine, the card or the model.

    Attributes
    ----------
    gpu_memory_utilization : share of the card [-]; SGLang's mem_fraction_static, TensorRT-LLM's free fraction
    max_num_seqs, max_num_batched_tokens : limits of a step, which size the profile run
    max_model_len : longest request [tokens]
    block_size : tokens a block
    kv_cache_dtype : ``auto``, ``fp8``, ...
    weights : format of the weights, ``auto`` as stored
    enforce_eager : no CUDA graphs
    enable_chunked_prefill : without it, V0 profiles a forward pass of max_model_len tokens; None: it chunks
        beyond 32,768 only
    num_gpu_blocks_override, kv_cache_memory_bytes : the pool itself, in blocks or in bytes
    pipeline_partition : layers on each stage
    decode_context_parallel_size : ranks that share the tokens of one sequence
    hybrid : allocate windows as windows; None as the version does
    state_blocks : blocks a recurrent state takes (1; 2 with aligned prefix caching; more with speculation)
    flashinfer_sampler : sampling without a sort before 0.18
    reserve_bytes : what ``fit_reserve`` found on the same host for non-torch growth and graphs together [B]
    printed : figures the engine printed; each replaces what it would be computed from
    draft : what drafts for the model on the same ranks; its weights and KV are part of the sum
    attention : ``flash``, or ``naive``, whose score matrix is an activation
    """

    gpu_memory_utilization: float | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    block_size: int | None = None
    kv_cache_dtype: str | None = "auto"
    weights: str | None = None
    enforce_eager: bool = False
    enable_chunked_prefill: bool | None = None
    num_gpu_blocks_override: int | None = None
    kv_cache_memory_bytes: int | None = None
    pipeline_partition: Sequence[int] | None = None
    decode_context_parallel_size: int = 1
    hybrid: bool | None = None
    state_blocks: int = 1
    flashinfer_sampler: bool = False
    reserve_bytes: int | None = None
    printed: PrintedMemory | None = None
    draft: Draft | None = None
    attention: str = "flash"


@dataclass(frozen=True, slots=True)
class Term:
    """One line of the sum.

    Attributes
    ----------
    name : ``weights``, ``draft_weights``, ``activations``, ``non_torch``, ``nccl``, ``context``, ``graphs``,
        ``reserve``
    bytes : size [B]
    source : ``printed`` by the engine, a ``formula``, a fitted ``constant``, or a ``setting``
    note : what it consists of, or why this value
    """

    name: str
    bytes: int
    source: Source
    note: str = ""


@dataclass(frozen=True, slots=True)
class PoolStage:
    """One tensor-parallel rank of one pipeline stage.

    Attributes
    ----------
    layers : layers it holds
    weights : its weights, part by part
    terms : what is subtracted from the budget
    pool_bytes : what is left for KV [B]
    bytes_per_block : one block on this stage [B]
    """

    layers: int
    weights: WeightShard
    terms: tuple[Term, ...]
    pool_bytes: int
    bytes_per_block: int

    @property
    def blocks(self) -> int:
        """Blocks that fit, never negative [blocks]."""
        # A stage without a cache never binds.
        return max(self.pool_bytes, 0) // max(self.bytes_per_block, 1)


@dataclass(frozen=True, slots=True)
class KVPool:
    """The KV pool of one replica, on each of its ranks.

    Attributes
    ----------
    device, engine, model : ids
    parallelism : ranks
    total_bytes : what the driver reports as total [B]
    budget_bytes : what the engine takes of it [B]
    gpu_memory_utilization, max_num_seqs, max_num_batched_tokens, max_model_len, block_size : as resolved
    kv_cache_dtype, weight_format : resolved formats
    stages : each stage of the pipeline
    layout : how KV is packed
    num_gpu_blocks : blocks of the pool: of the tightest rank, or as printed or set [blocks]
    blocks_source : where that number comes from
    null_blocks : blocks no request can have [blocks]
    split : pools that the blocks are divided into (vLLM V0 with a pipeline)
    uncertainty_bytes : half width of the pool [B]
    warnings : what a user should know
    """

    device: str
    engine: str
    model: str
    parallelism: Parallelism
    total_bytes: int
    budget_bytes: int
    gpu_memory_utilization: float
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    block_size: int
    kv_cache_dtype: str
    weight_format: str
    stages: tuple[PoolStage, ...]
    layout: KVLayout
    num_gpu_blocks: int
    blocks_source: Source
    null_blocks: int
    split: int
    uncertainty_bytes: int
    max_position: int
    warnings: tuple[str, ...] = ()

    @classmethod
    def sized(
        cls,
        device: DeviceProfile,
        engine: EngineLike,
        model: ModelSpec,
        ranks: Parallelism,
        settings: PoolSettings,
        *,
        total_bytes: int,
        budget_bytes: int,
        stages: tuple[PoolStage, ...],
        layout: KVLayout,
        num_gpu_blocks: int,
        blocks_source: Source,
        uncertainty_bytes: int,
        null_blocks: int = 0,
        split: int = 1,
        warnings: tuple[str, ...] = (),
    ) -> KVPool:
        """Return the pool of a model under resolved settings; the other arguments are the fields of those names."""
        return cls(
            device=device.id,
            engine=engine.id,
            model=model.id,
            parallelism=ranks,
            total_bytes=total_bytes,
            budget_bytes=budget_bytes,
            gpu_memory_utilization=settings.gpu_memory_utilization or 0.0,
            max_num_seqs=settings.max_num_seqs or 0,
            max_num_batched_tokens=settings.max_num_batched_tokens or 0,
            max_model_len=settings.max_model_len or 0,
            block_size=settings.block_size or 0,
            kv_cache_dtype=kv_dtype(model, settings.kv_cache_dtype),
            weight_format=stored_format(model.quantization, model.dtype, settings.weights).name,
            stages=stages,
            layout=layout,
            num_gpu_blocks=num_gpu_blocks,
            blocks_source=blocks_source,
            null_blocks=null_blocks,
            split=split,
            uncertainty_bytes=uncertainty_bytes,
            max_position=model.max_position,
            warnings=warnings,
        )

    @property
    def tightest(self) -> PoolStage:
        """The stage that bounds the pool."""
        return min(self.stages, key=lambda stage: stage.blocks)

    @property
    def terms(self) -> tuple[Term, ...]:
        """Terms of the tightest stage."""
        return self.tightest.terms

    @property
    def kv_pool_bytes(self) -> int:
        """Bytes for KV on the tightest rank: what is left, or the blocks that were printed or set [B]."""
        if self.num_gpu_blocks == self.tightest.blocks:
            return self.tightest.pool_bytes
        return self.num_gpu_blocks * self.tightest.bytes_per_block

    @property
    def fits(self) -> bool:
        """Whether the pool holds at least one request of max_model_len."""
        return self.request_blocks <= self.usable_blocks // self.split

    def term_bytes(self, *names: str) -> int:
        """Sum of the named terms of the tightest stage [B]."""
        return sum(term.bytes for term in self.terms if term.name in names)

    @property
    def usable_blocks(self) -> int:
        """Blocks that requests can have [blocks]."""
        return max(self.num_gpu_blocks - self.null_blocks, 0)

    @property
    def blocks_range(self) -> tuple[int, int]:
        """Fewest and most blocks within the uncertainty [blocks]."""
        if self.uncertainty_bytes == 0:
            return self.num_gpu_blocks, self.num_gpu_blocks
        width = self.uncertainty_bytes // max(self.tightest.bytes_per_block, 1)
        return max(self.num_gpu_blocks - width, 0), self.num_gpu_blocks + width

    @property
    def request_blocks(self) -> int:
        """Blocks one request of max_model_len takes [blocks]."""
        return self.layout.request_blocks(self.max_model_len, self.max_num_batched_tokens)

    @property
    def max_concurrency(self) -> float:
        """Requests of max_model_len that the pool holds, as the engine prints it [requests]."""
        return self.num_gpu_blocks / max(self.request_blocks, 1)

    @property
    def kv_capacity_tokens(self) -> int:
        """Tokens of the pool: blocks x block size; concurrency x max_model_len where layers differ."""
        if len(self.layout.groups) == 1 and self.layout.block_tokens:
            return self.num_gpu_blocks * self.layout.block_tokens * self.layout.context_parallel
        return int(self.max_concurrency * self.max_model_len)

    @property
    def largest_max_model_len(self) -> int:
        """Longest request that the pool holds alone, up to what the model allows [tokens]."""
        return self.longest(self.usable_blocks)

    def longest(self, blocks: int) -> int:
        """Return the longest request that so many blocks of the pool hold [tokens]."""
        return self.layout.max_length(blocks // self.split, self.max_num_batched_tokens, self.max_position)
