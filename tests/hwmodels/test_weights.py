"""Bytes of weights as stored, on each rank."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from membound.hwmodels.errors import CapacityError
from membound.hwmodels.model import list_models, load_model
from membound.hwmodels.params import parameter_count
from membound.hwmodels.spec import Attention, Linear
from membound.hwmodels.weightformat import FORMATS, weight_format
from membound.hwmodels.weights import linear_rank_shape, weight_bytes, weight_shards

GIB = 2**30
MODELS = st.sampled_from(list_models())
TEXT_16_BIT = [
    name
    for name in list_models()
    if load_model(name).quantization is None and not load_model(name).vocab % 64
]


@pytest.mark.parametrize(
    ("model", "printed"),
    [
        # "Loading model weights took 14.9888 GB" and the other sizes vLLM prints for these models
        ("llama-3.1-8b", 14.9888),
        ("llama-2-7b", 12.5523),
        ("qwen3-14b", 27.5179),
        ("deepseek-v2-lite", 29.301),
    ],
)
def test_weights_are_the_size_that_the_engine_prints(model: str, printed: float) -> None:
    assert weight_shards(load_model(model))[0].total / GIB == pytest.approx(printed, rel=1e-3)


def test_rotary_tables_count_by_the_longest_position() -> None:
    # kv-pool.md: Llama-3.1 0.031 GiB, Mistral-Nemo with 1,024,000 positions 0.244 GiB
    assert weight_shards(load_model("llama-3.1-8b"))[0].rotary / GIB == pytest.approx(0.031, abs=5e-4)
    nemo = replace(load_model("mistral-nemo"), max_position=1_024_000)
    assert weight_shards(nemo)[0].rotary / GIB == pytest.approx(0.244, abs=5e-4)


@pytest.mark.parametrize("name", TEXT_16_BIT)
def test_unquantized_weights_are_two_bytes_a_parameter(name: str) -> None:
    model = load_model(name)
    shard = weight_shards(model)[0]
    params = parameter_count(model).total
    assert shard.total - shard.rotary - shard.vision == pytest.approx(2 * params - shard.vision, rel=2e-3)


@pytest.mark.parametrize(
    ("name", "per_weight"),
    [("bf16", 2), ("fp8", 1), ("int8", 1), ("w4a16", 0.5156), ("mxfp4", 0.53125), ("nvfp4", 0.5625)],
)
def test_each_format_takes_its_bytes_a_weight_scales_included(name: str, per_weight: float) -> None:
    assert weight_format(name).matrix_bytes(4096, 4096) / 4096**2 == pytest.approx(per_weight, rel=2e-3)


def test_a_checkpoint_keeps_its_own_format_unless_another_is_asked_for() -> None:
    model = load_model("qwen3-32b-fp8")
    assert 31 < weight_bytes(model) / GIB < 35
    assert weight_bytes(model) == weight_bytes(model, "auto") == weight_bytes(model, "fp8")
    assert 60 < weight_bytes(model, "bf16") / GIB < 63
    assert weight_bytes(model, "w4a16") < weight_bytes(model)


def test_embeddings_and_head_stay_in_the_model_dtype() -> None:
    model = load_model("llama-3.1-8b")
    plain, packed = weight_shards(model)[0], weight_shards(model, weights="w4a16")[0]
    assert (packed.embedding, packed.head) == (plain.embedding, plain.head)
    assert packed.layers < 0.27 * plain.layers


def test_a_tied_head_is_stored_once_and_on_a_pipeline_twice() -> None:
    model = load_model("llama-3.2-1b")
    assert model.tied_embeddings
    assert weight_shards(model)[0].head == 0
    first, last = weight_shards(model, pipeline_parallel_size=2)
    assert (first.head, last.embedding) == (0, 0)
    assert last.head == first.embedding


def test_kv_heads_of_a_fused_matrix_are_replicated_beyond_their_number() -> None:
    attention = Attention(32, 4, 128, 128)
    qkv = Linear("qkv_proj", (32 + 2 * 4) * 128, 4096)
    assert linear_rank_shape(qkv, 4, attention) == ((8 + 2) * 128, 4096)
    assert linear_rank_shape(qkv, 8, attention) == ((4 + 2) * 128, 4096)
    gated = Linear("qkv_proj", (2 * 32 + 2 * 4) * 128, 4096)
    assert linear_rank_shape(gated, 8, attention) == ((2 * 4 + 2) * 128, 4096)
    keys_only = Linear("qkv_proj", (32 + 4) * 128, 4096)
    assert linear_rank_shape(keys_only, 8, attention) == ((4 + 1) * 128, 4096)


def test_a_quantized_latent_model_keeps_a_wide_copy_of_its_absorbed_projection() -> None:
    # 61 layers x 128 heads x (128 + 128) x 512 x 2 B
    assert weight_shards(load_model("deepseek-v3"))[0].absorbed == 61 * 128 * 256 * 512 * 2
    assert weight_shards(load_model("deepseek-v2-lite"))[0].absorbed == 0


def test_whole_experts_or_cut_ones_take_the_same_room() -> None:
    model = load_model("mixtral-8x7b")
    cut = weight_shards(model, tensor_parallel_size=4)[0].experts
    whole = weight_shards(model, tensor_parallel_size=4, expert_parallel=True)[0].experts
    assert cut == whole == weight_shards(model)[0].experts // 4


@settings(deadline=None)
@given(MODELS, st.sampled_from([1, 2, 4, 8]))
def test_more_ranks_never_hold_more_each_nor_less_in_all(name: str, tp: int) -> None:
    model = load_model(name)
    one, more = weight_bytes(model, None, tp), weight_bytes(model, None, 2 * tp)
    assert more <= one <= 2 * more


@settings(deadline=None)
@given(MODELS, st.integers(1, 6))
def test_stages_hold_every_weight_once(name: str, stages: int) -> None:
    model = load_model(name)
    one = weight_shards(model)[0]
    many = weight_shards(model, pipeline_parallel_size=stages)
    for part in ("layers", "experts", "embedding", "small", "vision", "absorbed"):
        assert sum(getattr(shard, part) for shard in many) == getattr(one, part)


@settings(deadline=None)
@given(MODELS, st.sampled_from(["fp8", "int8", "w4a16", "nvfp4"]))
def test_quantizing_a_plain_model_never_makes_it_larger(name: str, fmt: str) -> None:
    model = load_model(name)
    assume(model.quantization is None)
    assert weight_bytes(model, fmt) < weight_bytes(model)


@given(st.sampled_from(sorted(FORMATS)), st.integers(1, 5000), st.integers(1, 5000))
def test_a_matrix_takes_at_least_its_bits(name: str, n: int, k: int) -> None:
    fmt = FORMATS[name]
    assert fmt.matrix_bytes(n, k) >= n * k * fmt.bits / 8


def test_an_unknown_format_names_the_nearest() -> None:
    with pytest.raises(CapacityError, match=r"unknown weight format 'fp7'.*nearest: 'fp"):
        weight_bytes(load_model("llama-3.1-8b"), "fp7")
