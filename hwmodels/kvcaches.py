"""What a token leaves in the KV cache of one layer, on one rank.

A layer keeps one or two caches: keys and values, a latent, the keys of a sparse indexer, a window of
either, or a state of fixed size. Source: vLLM ``v1/kv_cache_interface.py``; entry sizes of the packed
formats: ``kv-pool.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Literal

from .errors import CapacityError, unknown
from .spec import Attention, Mixer, ModelSpec, MultiHeadLatentAttention, Recurrent

Kind = Literal["full", "window", "chunked", "recurrent"]

KV_DTYPE_BITS: dict[str, Fraction] = {
    "fp32": Fraction(32), "float32": Fraction(32),
    "bf16": Fraction(16), "bfloat16": Fraction(16), "fp16": Fraction(16), "float16": Fraction(16),
    "fp8": Fraction(8), "fp8_e4m3": Fraction(8), "fp8_e5m2": Fraction(8), "fp8_ds_mla": Fraction(8),
    "int8": Fraction(8),
    "nvfp4": Fraction(9, 2), "int4": Fraction(17, 4), "fp4": Fraction(4),
}  # fmt: skip
"""Bits that one element takes, scales included: of int4 a scale and a zero in fp16 for 128 elements [bit]."""

SPARSE_FP8_ENTRY = 656
"""fp8_ds_mla: 512 fp8 values, four fp32 scales, 64 rotary values in bf16 [B a token]."""
COMPRESSED_ENTRY = 584
"""One stored entry of the DeepSeek-V4 layout: 448 fp8 values, 64 rotary values in bf16, 8 B of scales [B]."""
EXPANDED_HEAD = 256
"""Head width to which early engines padded K and V of a latent layer stored expanded [elements]."""
HEAVY_HITTER_ENTRY = 4
"""H2O: the attention that an entry has drawn so far, kept in 32 bit for each KV head [B]."""
INDEX_BLOCK = 128
"""An indexer key is kept in fp8, with one fp32 scale for each so many elements."""


@dataclass(frozen=True, slots=True)
class CacheSpec:
    """One cache of one layer, on one rank.

    Attributes
    ----------
    kind : ``full`` grows with the sequence, ``window`` and ``chunked`` up to a bound, ``recurrent`` never
    label : what it holds (``attention``, ``latent``, ``index``, the kind of a recurrent layer)
    entry_bytes : one entry; of a recurrent layer, the whole state [B]
    window : window or chunk [tokens]; 0 where there is none
    tokens_per_entry : tokens that one entry stands for (DeepSeek-V4 keeps one for 4 or 128)
    """

    kind: Kind
    label: str
    entry_bytes: int
    window: int = 0
    tokens_per_entry: int = 1

    @property
    def bytes_per_token(self) -> Fraction:
        """What one more token adds while the cache still grows [B]."""
        return Fraction(0) if self.kind == "recurrent" else Fraction(self.entry_bytes, self.tokens_per_entry)

    def page_bytes(self, block_tokens: int) -> int:
        """Bytes of one block of so many tokens; of a recurrent layer, of its state [B]."""
        if self.kind == "recurrent":
            return self.entry_bytes
        return ceil(block_tokens / self.tokens_per_entry) * self.entry_bytes


def kv_dtype(model: ModelSpec, kv_cache_dtype: str | None = "auto") -> str:
    """Resolve ``auto``: the KV dtype the checkpoint asks for, else the model's own dtype.

    Raises
    ------
    CapacityError
        The name is not a KV dtype.
    """
    asked = model.quantization.kv_cache if model.quantization else None
    name = (asked or model.dtype) if kv_cache_dtype in (None, "auto") else kv_cache_dtype
    if name not in KV_DTYPE_BITS:
        raise CapacityError(
            unknown("KV cache dtype", name, ["auto", *KV_DTYPE_BITS], "quantization.kv_cache")
        )
    return name


def layer_caches(
    mixer: Mixer, dtype: str, model_dtype: str, tensor_parallel_size: int = 1, *, expanded: bool = False
) -> tuple[CacheSpec, ...]:
    """Return the caches one layer keeps on one rank; none if it stores nothing of its own.

    Parameters
    ----------
    mixer : the layer's sequence mixer
    dtype : KV dtype, one of ``KV_DTYPE_BITS``
    model_dtype : dtype of states and convolutions that the KV dtype does not touch
    tensor_parallel_size : ranks that share the KV heads; heads are replicated where there are fewer of them
    expanded : latent layers store full K and V heads, padded to 256 (vLLM before 0.7.1)
    """
    bits = KV_DTYPE_BITS[dtype]

    def stored(elements: int) -> int:
        return ceil(elements * bits / 8)

    if isinstance(mixer, Attention):
        if mixer.kv_shared:
            return ()
        kind: Kind = ("chunked" if mixer.chunked else "window") if mixer.window else "full"
        heads = -(-mixer.n_kv_heads // tensor_parallel_size)
        entry = heads * stored(mixer.head_dim + mixer.v_head_dim)
        if mixer.kept < 1:
            entry = ceil((entry + heads * HEAVY_HITTER_ENTRY) * mixer.kept)
        return (CacheSpec(kind, "attention", entry, mixer.window),)
    if isinstance(mixer, Recurrent):
        wide = KV_DTYPE_BITS[mixer.state_dtype or model_dtype]
        narrow = KV_DTYPE_BITS[model_dtype]
        state = ceil(-(-mixer.state_elements // tensor_parallel_size) * wide / 8)
        conv = ceil(-(-mixer.conv_elements // tensor_parallel_size) * narrow / 8)
        return (CacheSpec("recurrent", mixer.kind, state + conv),)
    if isinstance(mixer, MultiHeadLatentAttention):
        if expanded:
            heads = -(-mixer.n_heads // tensor_parallel_size)
            return (CacheSpec("full", "attention", heads * stored(2 * EXPANDED_HEAD)),)
        return _latent_caches(mixer, stored(mixer.kv_lora_rank + mixer.qk_rope_head_dim), dtype)
    return ()


def _latent_caches(mixer: MultiHeadLatentAttention, entry: int, dtype: str) -> tuple[CacheSpec, ...]:
    """Caches of a latent layer, replicated on every rank: latent, indexer keys, window."""
    index_scales = 4 * -(-mixer.index_head_dim // INDEX_BLOCK)
    index = mixer.index_head_dim + index_scales if mixer.index_head_dim else 0
    if mixer.window:
        caches = [CacheSpec("window", "latent", COMPRESSED_ENTRY, mixer.window)]
        if mixer.compress_ratio:
            caches.append(CacheSpec("full", "latent", COMPRESSED_ENTRY, 0, mixer.compress_ratio))
            if index:
                caches.append(CacheSpec("full", "index", index, 0, mixer.compress_ratio))
        return tuple(caches)
    if index and dtype.startswith("fp8"):
        entry = SPARSE_FP8_ENTRY
    latent = CacheSpec("full", "latent", entry)
    return (latent, CacheSpec("full", "index", index)) if index else (latent,)
