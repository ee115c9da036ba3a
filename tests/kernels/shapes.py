"""Small shapes, one or more for every operation."""

from __future__ import annotations

from typing import Any

HEADS = {"n_heads": 4, "n_kv_heads": 2, "head_dim": 32}
SMALL: dict[str, list[dict[str, Any]]] = {
    "gemm": [{"m": 1, "n": 64, "k": 256}, {"m": 33, "n": 96, "k": 384}],
    "attn_prefill": [
        {"batch": 2, "q_len": 37, "kv_len": 37, **HEADS},
        {"batch": 1, "q_len": 20, "kv_len": 51, **HEADS},
        {"batch": 1, "q_len": 16, "kv_len": 16, "n_heads": 2, "n_kv_heads": 2, "head_dim": 64},
    ],
    "attn_decode": [
        {"batch": 3, "q_len": 1, "kv_len": 77, **HEADS},
        {"batch": 1, "q_len": 1, "kv_len": 1, **HEADS},
        {"batch": 2, "q_len": 1, "kv_len": 64, "n_heads": 2, "n_kv_heads": 2, "head_dim": 64},
    ],
    "attn_mixed": [{"batch": 3, "q_len": 20, "kv_len": 77, "num_tokens": 40, **HEADS}],
    "rmsnorm": [{"num_tokens": 5, "hidden": 96}],
    "rotary": [{"num_tokens": 5, **HEADS}],
    "swiglu": [{"num_tokens": 5, "inter": 96}],
    "embedding": [{"num_tokens": 5, "hidden": 96}],
    "sample_greedy": [{"num_tokens": 5, "hidden": 1000}],
    "sample_topp": [{"num_tokens": 5, "hidden": 1000}, {"num_tokens": 2, "hidden": 20}],
    "moe": [
        {"num_tokens": 19, "hidden": 64, "inter": 96, "topk": 2, "n_experts": 8},
        {"num_tokens": 1, "hidden": 64, "inter": 32, "topk": 1, "n_experts": 4},
    ],
    "decoder_step": [{"batch": 3, "kv_len": 40, "hidden": 64, "inter": 96, **HEADS}],
    "copy_d2d": [{"bytes": 5000}],
    "copy_blocks": [{"bytes": 200_000}],
    "copy_h2d": [{"bytes": 5000}],
    "copy_d2h": [{"bytes": 5000}],
}
