"""Small literal devices, engines and models for tests of the step model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from membound.hwmodels.errors import CatalogError
from membound.hwmodels.spec import (
    Attention,
    DenseFFN,
    LayerGroup,
    Linear,
    ModelSpec,
    MoEFFN,
    MultiHeadLatentAttention,
    Recurrent,
)

GEMM = {"t0_us": 2.5, "ec": 0.86, "eb": 0.89, "q": 3.0, "k0": 170, "ts_us": 2.5, "ct": 3, "oe": 0.08}
DECODE = {
    "t0_us": 9.6, "eb": 1.0, "q": 1.5, "occ": 0.5, "wq": 0.23, "oe": 0.05, "gp": 1.3, "ec": 0.44,
    "tb_us": 0.35, "ts_us": 1.5, "tcta_us": 1.4, "cr": 0.8,
}  # fmt: skip
PREFILL = {"t0_us": 10, "ec": 0.84, "sx": 6.5, "occ": 0.97, "wq": 0.36, "q2": 2.2, "tt_us": 1.1, "k0": 9}
LANES: dict[str, dict[str, float]] = {
    "gemm": GEMM,
    "decode_attention": DECODE,
    "prefill_attention": PREFILL,
    "allreduce": {"a0_us": 4.2, "a1_us": 0.09, "bl": 0.45, "c0_us": 9.5, "c1_us": 0.01, "bb": 0.73},
    "moe": {
        "t0_us": 18, "t1_us": 14, "tc": 16, "te_ns": 24, "ec": 0.63, "ct": 226, "k0": 186,
        "eb": 0.91, "q": 2.7,
        "sat": 3.4, "oe": 0.29, "wq": 0.4, "xl": 2.5, "xg": 1.5, "tr_ns": 0, "al": 2.8, "allrows": 1,
    },
    "mla_decode": DECODE | {"hm": 64, "rr": 0.0, "x": 1.4, "split": 1, "gp": 104},
    "mla_prefill": PREFILL | {"x": 1.1, "d": 320},
}  # fmt: skip


@dataclass(frozen=True)
class Lane:
    """A literal lane."""

    params: Mapping[str, float]


@dataclass(frozen=True)
class Device:
    """A literal H100 SXM."""

    form: str = "tiles"
    peak_flops: Mapping[str, float] = field(default_factory=lambda: {"bf16": 989e12, "fp8": 1979e12})
    hbm_bandwidth: float = 3.35e12
    n_sm: int = 132
    l2_bytes: int = 50_000_000
    smem_bytes_per_sm: int | None = 233472
    link_bandwidth: float = 450e9
    boost_hz: float | None = 1.98e9
    arch: str = "Hopper"

    def lane(self, family: str, lane: str = "vllm") -> Lane:
        if family not in LANES:
            raise CatalogError(f"unknown kernel family {family!r} ({lane})")
        return Lane(LANES[family])


@dataclass(frozen=True)
class Engine:
    """A literal vLLM with the starting values of its step parameters."""

    lane: str = "vllm"
    capture_sizes: tuple[int, ...] = (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))
    host_exposed_s: float = 1e-4
    host_per_seq_s: float = 0.0
    engine_gemm_efficiency: float = 0.85
    engine_gemm_efficiency_low: float = 0.85
    mixed_decode_factor: float = 1.5
    mixed_decode_threshold_tokens: int = 128
    quantise_fused: float = 0.0
    quantise_fused_4bit: float = 0.0
    elementwise_t0_s: float = 2e-6
    elementwise_eb: float = 0.75
    sampler_greedy_t0_s: float = 2e-6
    sampler_greedy_bytes_per_entry: float = 10.0
    sampler_topk_t0_s: float = 1e-5
    sampler_topk_bytes_per_entry: float = 200.0
    sampler_topk_serial_s_per_entry: float = 0.0


def attention(
    hidden: int, heads: int, kv_heads: int, head_dim: int, window: int = 0, *, chunked: bool = False
) -> Attention:
    """Return grouped-query attention with its projections."""
    linears = (
        Linear("qkv_proj", (heads + 2 * kv_heads) * head_dim, hidden),
        Linear("o_proj", hidden, heads * head_dim, "row"),
    )
    return Attention(heads, kv_heads, head_dim, head_dim, window=window, chunked=chunked, linears=linears)


def swiglu(hidden: int, intermediate: int) -> DenseFFN:
    """Return a gated feed-forward layer with its matrices."""
    linears = (
        Linear("gate_up_proj", 2 * intermediate, hidden),
        Linear("down_proj", hidden, intermediate, "row"),
    )
    return DenseFFN(intermediate, True, linears)


def model(hidden: int, vocab: int, *groups: LayerGroup, name: str = "m") -> ModelSpec:
    """Return a model of these layers."""
    return ModelSpec(name, "qwen3", hidden, vocab, 40960, groups, False, hidden, rotary_dim=128)


QWEN3_14B = model(
    5120,
    151936,
    LayerGroup(40, attention(5120, 40, 8, 128), swiglu(5120, 17408), 2 * 5120 + 256),
    name="qwen3-14b",
)
SMALL = model(1024, 32000, LayerGroup(4, attention(1024, 8, 4, 128), swiglu(1024, 4096), 2048))
WINDOWS = model(
    1024,
    32000,
    LayerGroup(2, attention(1024, 8, 4, 128), swiglu(1024, 4096), 2048),
    LayerGroup(6, attention(1024, 8, 4, 128, 300), swiglu(1024, 4096), 2048),
)
CHUNKED = model(
    1024,
    32000,
    LayerGroup(2, attention(1024, 8, 4, 128), swiglu(1024, 4096), 2048),
    LayerGroup(2, attention(1024, 8, 4, 128, 300, chunked=True), swiglu(1024, 4096), 2048),
)
EXPERTS = model(
    2048,
    32000,
    LayerGroup(
        4,
        attention(2048, 16, 4, 128),
        MoEFFN(
            64, 8, 768, True,
            linears=(Linear("router", 64, 2048, "replicated", quantized=False),),
            expert_linears=(Linear("gate_up_proj", 1536, 2048), Linear("down_proj", 2048, 768, "row")),
        ),
        4096,
    ),
)  # fmt: skip
LATENT = model(
    2048,
    32000,
    LayerGroup(
        3,
        MultiHeadLatentAttention(
            16, 0, 512, 64, 128, 128,
            linears=(
                Linear("q_proj", 16 * 192, 2048),
                Linear("kv_a_proj", 576, 2048, "replicated"),
                Linear("kv_b_proj", 16 * 256, 512),
                Linear("o_proj", 2048, 16 * 128, "row"),
            ),
        ),
        swiglu(2048, 4096),
        4096,
    ),
)  # fmt: skip
HYBRID = model(
    1024,
    32000,
    LayerGroup(1, attention(1024, 8, 4, 128), swiglu(1024, 4096), 2048),
    LayerGroup(
        3,
        Recurrent("mamba2", 131072, 4096, linears=(Linear("in_proj", 4096, 1024),), n_heads=16, head_dim=64),
        swiglu(1024, 4096),
        2048,
    ),
)
ALL = {
    "dense": SMALL,
    "windows": WINDOWS,
    "chunked": CHUNKED,
    "experts": EXPERTS,
    "latent": LATENT,
    "hybrid": HYBRID,
}
