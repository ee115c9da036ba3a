"""FLOP and bytes of timed kernels are the lowering's, and what a hand count gives."""

from __future__ import annotations

import pytest
from membound.kernels.cost import OPERATIONS, cost_of, kernel_calls
from membound.kernels.errors import KernelError
from membound.kernels.shape import KernelShape, shape_from

HEADS = {"n_heads": 8, "n_kv_heads": 2, "head_dim": 64}


def test_a_multiplication_reads_both_and_writes_one():
    cost = cost_of(KernelShape("gemm", "x", "bfloat16", m=3, n=5, k=7))
    assert (cost.flop, cost.weight_bytes, cost.activation_bytes) == (2 * 3 * 5 * 7, 2 * 35, 2 * (21 + 15))


def test_narrow_weights_carry_their_scales():
    wide, narrow = (cost_of(KernelShape("gemm", "x", d, m=1, n=128, k=256)) for d in ("bfloat16", "int4_wo"))
    assert wide.flop == narrow.flop
    assert wide.weight_bytes / narrow.weight_bytes == pytest.approx(2 / (0.5 + 2 / 128))


def test_decoding_reads_every_key_and_value_once():
    cost = cost_of(
        KernelShape("attn_decode", "x", "bfloat16", "bfloat16", batch=3, q_len=1, kv_len=100, **HEADS)
    )
    assert cost.kv_bytes == 2 * 3 * 100 * 2 * 64 * 2
    assert cost.flop == 4 * 3 * 100 * 8 * 64


def test_a_causal_chunk_does_half_the_pairs():
    cost = cost_of(
        KernelShape("attn_prefill", "x", "bfloat16", "bfloat16", batch=1, q_len=10, kv_len=10, **HEADS)
    )
    assert cost.flop == 4 * 55 * 8 * 64


def test_a_mixed_batch_is_its_chunk_and_its_decodes():
    mixed = KernelShape(
        "attn_mixed", "x", "bfloat16", "bfloat16", batch=3, q_len=10, num_tokens=40, kv_len=100, **HEADS
    )
    decode = KernelShape("attn_decode", "x", "bfloat16", "bfloat16", batch=3, q_len=1, kv_len=100, **HEADS)
    chunk = KernelShape("attn_prefill", "x", "bfloat16", "bfloat16", batch=1, q_len=10, kv_len=40, **HEADS)
    assert cost_of(mixed) == cost_of(decode) + cost_of(chunk)
    assert [call.family for call in kernel_calls(mixed)] == ["decode_attention", "prefill_attention"]


def test_experts_read_the_touched_ones_only():
    shape = KernelShape("moe", "x", "bfloat16", num_tokens=1, hidden=64, inter=32, topk=2, n_experts=8)
    cost = cost_of(shape)
    assert cost.weight_bytes == 2 * 3 * 64 * 32 * 2
    assert cost.flop == 2 * 3 * 64 * 32 * 2


def test_a_norm_moves_four_rows_and_a_gate_three():
    assert (
        cost_of(KernelShape("rmsnorm", "x", "bfloat16", num_tokens=3, hidden=10)).hbm_bytes == 3 * 4 * 10 * 2
    )
    assert cost_of(KernelShape("swiglu", "x", "float32", num_tokens=3, inter=10)).hbm_bytes == 3 * 3 * 10 * 4


def test_an_unknown_operation_or_dtype_is_refused_in_one_line():
    with pytest.raises(KernelError, match="no kernel for operation 'conv'; allowed: gemm") as caught:
        cost_of(KernelShape("conv", "x", "bfloat16"))
    assert all(op in str(caught.value) for op in OPERATIONS)
    with pytest.raises(KernelError, match="no kernel for dtype 'int3'; allowed: bfloat16"):
        cost_of(KernelShape("gemm", "x", "int3", m=1, n=1, k=1))


def test_a_shape_survives_its_file_form():
    shape = KernelShape("attn_decode", "triton_paged", "bfloat16", "bfloat16", batch=1, kv_len=9, **HEADS)
    assert shape_from(shape.as_dict()) == shape
    assert shape.key.startswith("attn_decode/triton_paged/bfloat16/bfloat16/batch=1")
