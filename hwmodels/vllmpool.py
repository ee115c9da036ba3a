"""vLLM's accounting of a card's memory, term by term and stage by stage (design note ``kv-pool.md``)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from .activations import ACTIVATION_BYTES, expert_workspace_bytes, forward_bytes, sampler_bytes, score_bytes
from .device import DeviceProfile
from .errors import CapacityError
from .kvlayout import KVLayout, kv_layout, with_draft
from .lowering import Parallelism
from .memorylog import PrintedMemory
from .memoryrules import CONTEXT_GIB, GIB, GRAPH_GIB, MemoryRules
from .nofit import advice, in_gib, sum_of_terms
from .pool import PoolSettings, PoolStage, Source, Term
from .spec import Attention, ModelSpec, MultiHeadLatentAttention
from .stages import stage_layers
from .weights import WeightShard, weight_shards

V0_CHUNKS_BEYOND = 32_768
"""Longest max_model_len for which V0 did not chunk prompts by itself [tokens]."""
PRINTED_UNCERTAINTY = int(0.01 * GIB)
"""A printed size has two decimals [B]."""
EAGER_GIB = 0.4
"""p90 of the error seen on dense text models where graphs are not in the budget [GiB]."""
SEEN_UNCERTAINTY = int(0.2 * GIB)
"""Assumed for a host whose reserve was fitted from one of its own lines [B]."""


@dataclass(frozen=True, slots=True)
class VllmCase:
    """One question about one engine version, with every setting resolved."""

    device: DeviceProfile
    model: ModelSpec
    rules: MemoryRules
    total_bytes: int

    def budget(self, settings: PoolSettings) -> int:
        """Bytes the engine takes of the card [B]."""
        share = settings.gpu_memory_utilization
        return ceil(self.total_bytes * (self.rules.gpu_memory_utilization if share is None else share))

    def layout(self, settings: PoolSettings, ranks: Parallelism) -> KVLayout:
        """How KV is packed under these settings."""
        return kv_layout(
            self.model,
            kv_cache_dtype=settings.kv_cache_dtype,
            block_size=settings.block_size or 16,
            tensor_parallel_size=ranks.tensor_parallel_size,
            pipeline_parallel_size=ranks.pipeline_parallel_size,
            pipeline_partition=settings.pipeline_partition,
            decode_context_parallel_size=settings.decode_context_parallel_size,
            hybrid=self._hybrid() if settings.hybrid is None else settings.hybrid,
            expanded=self.rules.latent_expanded,
            state_blocks=settings.state_blocks,
        )

    def draft_layout(self, settings: PoolSettings, ranks: Parallelism) -> KVLayout:
        """How the draft's KV would be packed if it stood alone."""
        assert settings.draft is not None
        return kv_layout(
            settings.draft.model,
            kv_cache_dtype=settings.kv_cache_dtype,
            block_size=settings.block_size or 16,
            tensor_parallel_size=ranks.tensor_parallel_size,
            hybrid=False,
            expanded=self.rules.latent_expanded,
        )

    def _hybrid(self) -> bool:
        """Whether this version allocates the model's windows as windows."""
        chunked = any(isinstance(mixer, Attention) and mixer.chunked for _, mixer in self.model.mixers())
        return self.rules.hybrid and (self.rules.hybrid_chunked or not chunked)

    def stages(self, settings: PoolSettings, ranks: Parallelism) -> tuple[tuple[PoolStage, ...], KVLayout]:
        """Divide the memory of each stage's rank; ``settings`` must be resolved."""
        layout = self.layout(settings, ranks)
        if settings.draft is not None:
            layout = with_draft(layout, self.draft_layout(settings, ranks))
        shards = weight_shards(
            self.model,
            weights=settings.weights,
            tensor_parallel_size=ranks.tensor_parallel_size,
            pipeline_parallel_size=ranks.pipeline_parallel_size,
            pipeline_partition=settings.pipeline_partition,
            data_parallel_size=ranks.data_parallel_size,
            expert_parallel=ranks.expert_parallel,
        )
        held = stage_layers(self.model, ranks.pipeline_parallel_size, settings.pipeline_partition)
        found: list[PoolStage] = []
        for i, shard in enumerate(shards):
            terms = self._terms(settings, ranks, shard, last=i == len(shards) - 1)
            given = settings.kv_cache_memory_bytes
            pool = self.budget(settings) - sum(term.bytes for term in terms) if given is None else given
            found.append(PoolStage(len(held[i]), shard, terms, pool, layout.stage_bytes_per_block[i]))
        return tuple(found), layout

    def _draft_weights(self, settings: PoolSettings, ranks: Parallelism, last: bool) -> list[Term]:
        """Weights of what drafts, on the last stage of a pipeline."""
        draft = settings.draft
        if draft is None or not last:
            return []
        tp = ranks.tensor_parallel_size
        (shard,) = weight_shards(
            draft.model,
            weights=draft.quantization.weights,
            tensor_parallel_size=tp,
            expert_parallel=ranks.expert_parallel,
        )
        size, note = shard.total, f"{draft.model.id}, as stored"
        if draft.shared_tables:
            size -= shard.embedding + shard.head + shard.rotary
            note = f"{draft.model.id}; embedding and output head are the target's"
        return [Term("draft_weights", size, "formula", note)]

    def _terms(
        self, settings: PoolSettings, ranks: Parallelism, shard: WeightShard, last: bool
    ) -> tuple[Term, ...]:
        printed = settings.printed or PrintedMemory()
        terms = [
            _printed_or(
                printed.weights_bytes, Term("weights", shard.total, "formula", "parameters as stored, tables")
            ),
            *self._draft_weights(settings, ranks, last),
            _printed_or(printed.activation_bytes, self._activations(settings, ranks, shard, last)),
        ]
        if settings.reserve_bytes is not None:
            note = "non-torch growth and graphs, fitted from a line of the same host"
            return (*terms, Term("reserve", settings.reserve_bytes, "printed", note))
        if printed.non_torch_bytes is not None:
            terms.append(Term("non_torch", printed.non_torch_bytes, "printed"))
        else:
            size, note = self.rules.non_torch_bytes(self.device)
            terms.append(Term("non_torch", size, "constant", note))
            nccl = self.rules.nccl_bytes(self.device)
            if nccl and ranks.tensor_parallel_size > 1:
                terms.append(Term("nccl", nccl, "constant", "communicators, inside the budget before 0.11"))
            if self.rules.counts_context:
                terms.append(
                    Term("context", int(CONTEXT_GIB * GIB), "constant", "inside the budget to 0.6.4")
                )
        if self.rules.graph_gib and not settings.enforce_eager:
            size = int(self.rules.graph_gib * GIB)
            graphs = Term("graphs", size, "constant", "printed estimates: 0.2 to 5 GiB")
            terms.append(_printed_or(printed.graph_bytes, graphs))
        return tuple(terms)

    def _activations(
        self, settings: PoolSettings, ranks: Parallelism, shard: WeightShard, last: bool
    ) -> Term:
        """Return the largest peak of the profile run, and which part of it that is."""
        tokens = self._profiled_tokens(settings)
        tp, whole = ranks.tensor_parallel_size, ranks.expert_parallel
        rows = min(settings.max_num_seqs or 1, tokens)
        peaks = {
            f"forward pass of {tokens:,} tokens": forward_bytes(self.model, tokens, tp, expert_parallel=whole)
        }
        if settings.attention == "naive":
            length = settings.max_model_len or tokens
            scores = score_bytes(self.model, min(tokens, length), length, tp)
            note = f"score matrix of naive attention, {min(tokens, length):,} queries by {length:,} keys"
            peaks[note] = scores + ACTIVATION_BYTES * tokens * 3 * self.model.hidden
        if last:  # Only the last stage of a pipeline samples.
            sampled = sampler_bytes(self.model, self.rules, tokens, rows)
            kept = expert_workspace_bytes(self.model, tokens, tp, expert_parallel=whole)
            if sampled and kept and self.rules.keeps_workspace:
                peaks[f"sampling {rows:,} rows beside the experts' workspace"] = sampled + kept
            else:
                peaks[f"sampling {rows:,} rows, more than the forward pass"] = sampled
        if self.rules.times_kernels and not settings.enforce_eager:
            peaks["compiling: kernels are timed on a copy of the rotary table"] = shard.rotary
        note = max(peaks, key=lambda name: peaks[name])
        return Term("activations", peaks[note], "formula", note)

    def _profiled_tokens(self, settings: PoolSettings) -> int:
        """Tokens of the profile run: V0 takes a whole prompt unless it chunks."""
        tokens = settings.max_num_batched_tokens or 1
        length = settings.max_model_len or tokens
        chunked = settings.enable_chunked_prefill
        if self.rules.scheduler == "v0" and not (length > V0_CHUNKS_BEYOND if chunked is None else chunked):
            return length
        return tokens

    def spare(self, settings: PoolSettings, ranks: Parallelism) -> int:
        """Bytes left on the tightest rank after one block that a request can have [B]."""
        stages, _ = self.stages(settings, ranks)
        needed = self.rules.null_blocks + 1
        return min(stage.pool_bytes - needed * stage.bytes_per_block for stage in stages)

    def refuse(self, settings: PoolSettings, ranks: Parallelism) -> CapacityError:
        """Compose the error of a model that does not fit."""
        stages, _ = self.stages(settings, ranks)
        worst = min(stages, key=lambda stage: stage.pool_bytes)
        budget = self.budget(settings)
        share = settings.gpu_memory_utilization
        if settings.kv_cache_memory_bytes is not None:
            what = (
                f"kv_cache_memory_bytes {in_gib(settings.kv_cache_memory_bytes)} GiB is less than one block"
            )
            return CapacityError(f"{what} of {worst.bytes_per_block:,} B on {self.device.id}")
        heads = sorted({mixer.n_heads for _, mixer in self.model.mixers() if not _is_state(mixer)})
        where = f" on each of {ranks.tensor_parallel_size}" if ranks.tensor_parallel_size > 1 else ""
        return CapacityError(
            f"{self.model.id} does not fit {self.device.id}: {sum_of_terms(worst.terms)}{where}, plus a KV "
            + f"block, against a budget of {in_gib(budget)} GiB ({share:g} x {in_gib(self.total_bytes)}), "
            + f"short of {in_gib(-self.spare(settings, ranks))} GiB; "
            + advice(self.spare, settings, ranks, heads, self.total_bytes, budget)
        )

    def uncertainty(self, settings: PoolSettings, source: Source) -> int:
        """Half width of the pool, by what is known of it [B]."""
        if source == "setting" or (source == "printed" and _printed_blocks(settings.printed)):
            return 0
        if source == "printed":
            return PRINTED_UNCERTAINTY
        if settings.reserve_bytes is not None:
            return SEEN_UNCERTAINTY
        wide, dense = self.rules.wide_gib, self.rules.dense_gib
        if settings.enforce_eager:
            dense = min(dense, EAGER_GIB)
        return int((wide if is_wide(self.model) else dense) * GIB)

    def memory_warnings(self, settings: PoolSettings, stages: tuple[PoolStage, ...]) -> list[str]:
        """Say where the card, not the budget, is too small: context and graphs lie outside the budget."""
        if settings.kv_cache_memory_bytes is None:
            used = self.budget(settings)
        else:
            used = max(s.pool_bytes + sum(t.bytes for t in s.terms) for s in stages)
        outside = 0 if self.rules.counts_context else int(CONTEXT_GIB * GIB)
        if not self.rules.graph_gib and not settings.enforce_eager:
            outside += int(GRAPH_GIB * GIB)
        if used + outside <= self.total_bytes:
            return []
        return [
            f"{in_gib(used)} GiB for the engine and about {in_gib(outside)} GiB of context and graphs beside "
            + f"it exceed the card's {in_gib(self.total_bytes)} GiB, so expect an out-of-memory error"
        ]


def _is_state(mixer: object) -> bool:
    return not isinstance(mixer, Attention | MultiHeadLatentAttention)


def _printed_or(size: int | None, term: Term) -> Term:
    return term if size is None else replace(term, bytes=size, source="printed", note="")


def _printed_blocks(printed: PrintedMemory | None) -> bool:
    return printed is not None and (printed.num_gpu_blocks is not None or printed.kv_tokens is not None)


def is_wide(model: ModelSpec) -> bool:
    """Whether the model belongs to the kinds whose pool is less sure: latent attention, experts, vision."""
    experts = model.has_experts
    latent = any(isinstance(mixer, MultiHeadLatentAttention) for _, mixer in model.mixers())
    return experts or latent or model.vision_params > 0
