"""The answer of ``membound size``: what fits, in bytes, blocks, tokens and requests."""

from __future__ import annotations

from dataclasses import dataclass

from .bareengine import EngineLike
from .capacity import kv_pool
from .device import DeviceProfile
from .hostlog import HostLog
from .lowering import ParallelismLike
from .pool import KVPool, PoolSettings
from .spec import ModelSpec

SHORTEST = 1024
"""Shortest request of ``held_requests`` [tokens]."""
RESERVE = ("non_torch", "nccl", "context", "graphs", "reserve")


@dataclass(frozen=True, slots=True)
class SizeReport:
    """A pool, as the size command prints it.

    Attributes
    ----------
    pool : the pool, with all its terms
    log : the engine's own log against the formula, where one was read
    """

    pool: KVPool
    log: HostLog | None = None

    @property
    def memory(self) -> dict[str, object]:
        """The ``memory`` object: sizes of the tightest rank [B]; ``terms`` say where each comes from."""
        pool = self.pool
        low, high = pool.blocks_range
        return {
            "weights_bytes": pool.term_bytes("weights"),
            **({"draft_weights_bytes": draft} if (draft := pool.term_bytes("draft_weights")) else {}),
            "activation_bytes": pool.term_bytes("activations"),
            "reserve_bytes": pool.term_bytes(*RESERVE),
            "kv_pool_bytes": pool.kv_pool_bytes,
            "kv_bytes_per_token": pool.layout.bytes_per_token,
            "num_gpu_blocks": pool.num_gpu_blocks,
            "kv_capacity_tokens": pool.kv_capacity_tokens,
            "max_concurrency_at_max_model_len": pool.max_concurrency,
            "fits": pool.fits,
            "usable_blocks": pool.usable_blocks,
            "num_gpu_blocks_range": [low, high],
            "uncertainty_bytes": pool.uncertainty_bytes,
            "blocks_source": pool.blocks_source,
            "block_size": pool.layout.block_tokens or pool.block_size,
            "weight_format": pool.weight_format,
            "kv_cache_dtype": pool.kv_cache_dtype,
            "max_model_len": pool.max_model_len,
            "total_bytes": pool.total_bytes,
            "budget_bytes": pool.budget_bytes,
            "terms": [
                {"name": term.name, "bytes": term.bytes, "source": term.source, "note": term.note}
                for term in pool.terms
            ],
        }

    @property
    def per_request_kv(self) -> dict[str, object]:
        """KV of one long request, on all stages of one tensor-parallel rank: fixed + slope x length [B]."""
        layout = self.pool.layout
        return {
            "fixed_bytes": layout.fixed_bytes(self.pool.max_num_batched_tokens),
            "bytes_per_token": layout.slope_bytes,
        }

    @property
    def held_requests(self) -> list[tuple[int, int]]:
        """How many requests of a length the pool holds at once: (tokens, requests), lengths doubling."""
        pool = self.pool
        longest = min(pool.max_model_len, pool.largest_max_model_len)
        lengths = [1 << power for power in range(SHORTEST.bit_length() - 1, longest.bit_length())]
        lengths = [length for length in lengths if length < longest] + ([longest] if longest else [])
        blocks = pool.usable_blocks // pool.split
        return [(n, blocks // pool.layout.request_blocks(n, pool.max_num_batched_tokens)) for n in lengths]

    @property
    def shards(self) -> list[dict[str, object]]:
        """Each stage of the pipeline, on one of its tensor-parallel ranks."""
        return [
            {
                "stage": i,
                "tensor_parallel_size": self.pool.parallelism.tensor_parallel_size,
                "layers": stage.layers,
                "weights_bytes": stage.weights.total,
                "kv_pool_bytes": max(stage.pool_bytes, 0),
                "bytes_per_block": stage.bytes_per_block,
                "num_gpu_blocks": stage.blocks,
            }
            for i, stage in enumerate(self.pool.stages)
        ]

    def to_json(self) -> dict[str, object]:
        """Return the object that ``size --format json`` prints."""
        return {
            "memory": self.memory,
            "per_request_kv": self.per_request_kv,
            "shards": self.shards,
            "largest_max_model_len": self.pool.largest_max_model_len,
            "held_requests": [
                {"tokens": tokens, "requests": requests} for tokens, requests in self.held_requests
            ],
            "settings": {
                "device": self.pool.device,
                "engine": self.pool.engine,
                "model": self.pool.model,
                "gpu_memory_utilization": self.pool.gpu_memory_utilization,
                "max_num_seqs": self.pool.max_num_seqs,
                "max_num_batched_tokens": self.pool.max_num_batched_tokens,
                "kv_cache_dtype": self.pool.kv_cache_dtype,
                "weights": self.pool.weight_format,
                "tensor_parallel_size": self.pool.parallelism.tensor_parallel_size,
                "pipeline_parallel_size": self.pool.parallelism.pipeline_parallel_size,
            },
            "log": self.log.to_dict() if self.log else None,
            "warnings": list(self.pool.warnings),
        }


def size_report(
    device: DeviceProfile,
    engine: EngineLike,
    model: ModelSpec,
    parallelism: ParallelismLike | None = None,
    settings: PoolSettings | None = None,
) -> SizeReport:
    """Size a replica; parameters and errors as in ``capacity.kv_pool``."""
    return SizeReport(kv_pool(device, engine, model, parallelism, settings))
