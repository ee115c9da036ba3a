"""How an engine packs the caches of a model's layers into blocks.

vLLM shares one pool between all caches: caches of one kind form a type, types are cut into groups of equal
size, and one block of any group takes the same bytes (source: vLLM ``v1/core/kv_cache_utils.py``, 0.8 to
0.33, and the design note ``kv-pool.md``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, lcm

from .errors import CapacityError
from .kvcaches import CacheSpec, Kind, kv_dtype, layer_caches
from .spec import ModelSpec
from .stages import stage_layers

STATE_ALIGNMENT = 16
"""An attention block raised to the size of a recurrent state stays a multiple of so many tokens."""


@dataclass(frozen=True, slots=True)
class KVGroup:
    """``copies`` groups of caches that grow alike; each takes one block of the pool at a time.

    Attributes
    ----------
    kind, window : as in ``CacheSpec``
    labels : what the group holds
    layers : caches of this type in the whole model (unpadded)
    copies : groups of this type
    block_tokens : tokens in one block; 0 for a recurrent state
    """

    kind: Kind
    labels: tuple[str, ...]
    window: int
    layers: int
    copies: int
    block_tokens: int

    def blocks(
        self, length: int, batched_tokens: int, context_parallel: int = 1, state_blocks: int = 1
    ) -> int:
        """Return the blocks one request of ``length`` tokens may hold in all copies.

        Parameters
        ----------
        length : tokens of the request [tokens]
        batched_tokens : most tokens one step may add (max_num_batched_tokens) [tokens]
        context_parallel : ranks that share a full-attention sequence (decode context parallelism)
        state_blocks : blocks of a recurrent state: 1, or 2 with aligned prefix caching, plus speculative ones
        """
        if self.kind == "recurrent":
            return self.copies * state_blocks
        if self.kind == "full":
            own = -(-length // context_parallel)
            return self.copies * -(-own // self.block_tokens)
        if self.kind == "chunked":
            return self.copies * -(-min(self.window + batched_tokens, length) // self.block_tokens)
        # One more block: the window's oldest token may sit anywhere in its block.
        return self.copies * (-(-min(self.window - 1 + batched_tokens, length) // self.block_tokens) + 1)


@dataclass(frozen=True, slots=True)
class KVLayout:
    """How one model's KV is packed, on one tensor-parallel rank.

    Attributes
    ----------
    groups : groups, those that grow with the sequence first
    stage_bytes_per_block : bytes one block takes on each pipeline stage [B]
    bytes_per_token : what one token adds in every cache that grows without bound, all stages together [B]
    bytes_per_token_below_window : the same while windows still grow [B]
    state_bytes : recurrent states of one request, all stages together, unpadded [B]
    context_parallel, state_blocks : as in ``KVGroup.blocks``
    notes : approximations made
    """

    groups: tuple[KVGroup, ...]
    stage_bytes_per_block: tuple[int, ...]
    bytes_per_token: float
    bytes_per_token_below_window: float
    state_bytes: int
    context_parallel: int = 1
    state_blocks: int = 1
    notes: tuple[str, ...] = ()

    @property
    def block_tokens(self) -> int:
        """Tokens in the smallest block of the layout [tokens]; 0 if nothing grows."""
        return min((group.block_tokens for group in self.groups if group.block_tokens), default=0)

    @property
    def n_groups(self) -> int:
        """Number of groups, copies counted [-]."""
        return sum(group.copies for group in self.groups)

    @property
    def bytes_per_block(self) -> int:
        """One block, all stages together [B]."""
        return sum(self.stage_bytes_per_block)

    def request_blocks(self, length: int, batched_tokens: int) -> int:
        """Return the blocks one request of ``length`` tokens may hold, all groups together."""
        return sum(
            group.blocks(length, batched_tokens, self.context_parallel, self.state_blocks)
            for group in self.groups
        )

    def fixed_bytes(self, batched_tokens: int) -> int:
        """Bytes a long request holds whatever its length: windows and states, in whole blocks [B]."""
        endless = 1 << 60
        bounded = (group for group in self.groups if group.kind != "full")
        return self.bytes_per_block * sum(
            group.blocks(endless, batched_tokens, self.context_parallel, self.state_blocks)
            for group in bounded
        )

    @property
    def slope_bytes(self) -> float:
        """Bytes each token of a long request adds, padding included [B]."""
        return sum(
            self.bytes_per_block * group.copies / (group.block_tokens * self.context_parallel)
            for group in self.groups
            if group.kind == "full"
        )

    def max_length(self, blocks: int, batched_tokens: int, limit: int) -> int:
        """Return the longest request, up to ``limit`` tokens, that so many blocks can hold (0 if none)."""
        low, high = 0, limit
        while low < high:
            middle = (low + high + 1) // 2
            if self.request_blocks(middle, batched_tokens) <= blocks:
                low = middle
            else:
                high = middle - 1
        return low


def kv_layout(
    model: ModelSpec,
    *,
    kv_cache_dtype: str | None = "auto",
    block_size: int = 16,
    tensor_parallel_size: int = 1,
    pipeline_parallel_size: int = 1,
    pipeline_partition: Sequence[int] | None = None,
    decode_context_parallel_size: int = 1,
    hybrid: bool = True,
    expanded: bool = False,
    state_blocks: int = 1,
) -> KVLayout:
    """Pack a model's caches into blocks as vLLM does.

    Parameters
    ----------
    model : the model
    kv_cache_dtype : ``auto``, ``fp8``, ``bf16``, ...
    block_size : tokens per block [tokens]; raised where a recurrent state needs more, or where pages differ
    tensor_parallel_size, pipeline_parallel_size : ranks of the group
    pipeline_partition : layers on each stage, where it is not vLLM's own even split
    decode_context_parallel_size : ranks that share the tokens of one sequence
    hybrid : False charges windows as full attention (versions and connectors without hybrid allocation)
    expanded : as in ``layer_caches``
    state_blocks : blocks of a recurrent state

    Raises
    ------
    CapacityError
        Unknown dtype, a block size below 1, or a partition that does not add up.

    Examples
    --------
    >>> from membound.hwmodels.spec import Attention, LayerGroup, ModelSpec
    >>> layer = LayerGroup(80, Attention(64, 8, 128, 128), None)
    >>> model = ModelSpec("m", "llama", 8192, 128256, 131072, (layer,), False, 8192)
    >>> kv_layout(model).bytes_per_token
    327680.0
    """
    if block_size < 1:
        raise CapacityError(f"kv_cache.block_size is {block_size}; allowed: 1 token or more")
    dtype = kv_dtype(model, kv_cache_dtype)
    per_group = [
        layer_caches(group.mixer, dtype, model.dtype, tensor_parallel_size, expanded=expanded)
        for group in model.layers
    ]
    if not hybrid:
        per_group = [tuple(map(_as_full, caches)) for caches in per_group]
    stages = [
        Counter(cache for layer in layers for cache in per_group[layer])
        for layers in stage_layers(model, pipeline_parallel_size, pipeline_partition)
    ]
    whole = sum(stages, Counter[CacheSpec]())
    groups, stage_bytes, notes = _pack(whole, stages, block_size)
    growing = {cache: count for cache, count in whole.items() if cache.kind == "full"}
    return KVLayout(
        groups=groups,
        stage_bytes_per_block=stage_bytes,
        bytes_per_token=float(sum(count * cache.bytes_per_token for cache, count in growing.items())),
        bytes_per_token_below_window=float(sum(n * cache.bytes_per_token for cache, n in whole.items())),
        state_bytes=sum(n * cache.entry_bytes for cache, n in whole.items() if cache.kind == "recurrent"),
        context_parallel=decode_context_parallel_size,
        state_blocks=state_blocks,
        notes=notes,
    )


def with_draft(layout: KVLayout, draft: KVLayout) -> KVLayout:
    """Return a layout whose blocks also hold what a draft model keeps of the same tokens.

    vLLM gives the draft's layers pages in the blocks of the target's. They lie on the last stage of a pipeline.

    Approximation: where the target's layers cache in different ways, the draft's pages are spread over the groups that
    grow, without the padding that vLLM's grouping may add; windows of the draft are kept as full attention.
    """
    growing = [group for group in layout.groups if group.kind == "full"]
    if not draft.bytes_per_token or not growing:
        return layout
    shares = sum(group.copies / group.block_tokens for group in growing)
    more = ceil(draft.bytes_per_token * layout.context_parallel / shares)
    *before, last = layout.stage_bytes_per_block
    return replace(
        layout,
        stage_bytes_per_block=(*before, last + more),
        bytes_per_token=layout.bytes_per_token + draft.bytes_per_token,
        bytes_per_token_below_window=layout.bytes_per_token_below_window + draft.bytes_per_token,
    )


def _as_full(cache: CacheSpec) -> CacheSpec:
    return replace(cache, kind="full", window=0) if cache.kind in ("window", "chunked") else cache


Packed = tuple[tuple[KVGroup, ...], tuple[int, ...], tuple[str, ...]]


def _pack(whole: Counter[CacheSpec], stages: Sequence[Counter[CacheSpec]], block: int) -> Packed:
    """Choose between one uniform group, compressed caches, and vLLM's shared groups."""
    if any(cache.tokens_per_entry > 1 for cache in whole):
        return _pack_compressed(whole, stages, block)
    if len({(cache.kind, cache.window) for cache in whole}) <= 1:
        return _pack_uniform(whole, stages, block)
    return _pack_hybrid(whole, stages, block)


def _pack_uniform(whole: Counter[CacheSpec], stages: Sequence[Counter[CacheSpec]], block: int) -> Packed:
    """All caches grow alike: one group, whose block is the sum of the layers' pages."""
    stage_bytes = tuple(_page_sum(stage, block) for stage in stages)
    if not whole:
        return (), stage_bytes, ("no layer keeps a KV cache",)
    first = next(iter(whole))
    group = KVGroup(
        kind=first.kind,
        labels=tuple(sorted({cache.label for cache in whole})),
        window=first.window,
        layers=whole.total(),
        copies=1,
        block_tokens=0 if first.kind == "recurrent" else block,
    )
    return (group,), stage_bytes, ()


def _page_sum(caches: Counter[CacheSpec], block: int) -> int:
    return sum(count * cache.page_bytes(block) for cache, count in caches.items())


def _pack_hybrid(whole: Counter[CacheSpec], stages: Sequence[Counter[CacheSpec]], block: int) -> Packed:
    """Cut the types into groups of equal size and give every page the bytes of the largest."""
    notes: list[str] = []
    blocks = dict.fromkeys(whole, block)
    state = max((cache.entry_bytes for cache in whole if cache.kind == "recurrent"), default=0)
    for cache in whole:
        if cache.kind != "recurrent" and cache.page_bytes(block) < state:
            step = lcm(STATE_ALIGNMENT, block)
            blocks[cache] = step * -(-state // cache.page_bytes(step))
    page = max(cache.page_bytes(blocks[cache]) for cache in whole)
    for cache in whole:
        if cache.kind != "recurrent":
            own = cache.page_bytes(blocks[cache])
            blocks[cache] *= page // own
            if page % own:
                # Approximation: vLLM refuses such a model or pads it, by version; under half a page is lost.
                notes.append(f"pages of {own} B and {page} B do not divide: the smaller is padded")
    fewest, most = min(whole.values()), max(whole.values())
    size = most if most < 1.5 * fewest else fewest
    copies = {cache: -(-count // size) for cache, count in whole.items()}
    groups = [
        KVGroup(
            kind=cache.kind,
            labels=(cache.label,),
            window=cache.window,
            layers=count,
            copies=copies[cache],
            block_tokens=0 if cache.kind == "recurrent" else blocks[cache],
        )
        for cache, count in whole.items()
    ]
    order: list[Kind] = ["full", "chunked", "window", "recurrent"]
    groups.sort(key=lambda group: order.index(group.kind))
    # A group's layers are dealt out over the model, so a stage holds its even share of each group.
    stage_sizes = [max((-(-n // copies[cache]) for cache, n in stage.items()), default=0) for stage in stages]
    if len(stages) == 1:
        stage_sizes = [size]
    return tuple(groups), tuple(page * n for n in stage_sizes), tuple(notes)


def _pack_compressed(whole: Counter[CacheSpec], stages: Sequence[Counter[CacheSpec]], block: int) -> Packed:
    """Caches that keep one entry for many tokens: the block is a multiple of the coarsest entry.

    Approximation: windows are charged in whole blocks of the growing caches, by their bytes, without the
    padding and the compressor states of the engine's five groups; no experiment bounds it yet.
    """
    coarsest = lcm(block, *(cache.tokens_per_entry for cache in whole))
    growing = [Counter({c: n for c, n in stage.items() if c.kind == "full"}) for stage in stages]
    stage_bytes = tuple(_page_sum(stage, coarsest) for stage in growing)
    total = sum(growing, Counter[CacheSpec]())
    groups = [
        KVGroup("full", tuple(sorted({c.label for c in total})), 0, total.total(), 1, coarsest),
    ]
    per_block = max(sum(stage_bytes), 1)
    for cache, count in whole.items():
        if cache.kind == "window":
            tokens = max(per_block // (count * cache.entry_bytes), 1)
            groups.append(KVGroup("window", (cache.label,), cache.window, count, 1, tokens))
    return tuple(groups), stage_bytes, ("compressed KV: block sizes are approximate",)
