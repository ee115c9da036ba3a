"""What a token leaves in the cache, and how layers are packed into blocks."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from membound.hwmodels.errors import CapacityError
from membound.hwmodels.kvlayout import kv_layout
from membound.hwmodels.model import list_models, load_model
from membound.hwmodels.spec import Attention, LayerGroup, ModelSpec, MultiHeadLatentAttention, Recurrent
from membound.hwmodels.stages import pipeline_partition, stage_layers

MODELS = st.sampled_from(list_models())


def spec(*layers: LayerGroup, **fields: object) -> ModelSpec:
    base = {"id": "toy", "architecture": "toy", "hidden": 64, "vocab": 512, "max_position": 4096}
    return ModelSpec(**base | {"layers": layers, "tied_embeddings": False, "embedding_dim": 64} | fields)


def attention(kv_heads: int, head_dim: int = 128, window: int = 0, **fields: object) -> Attention:
    return Attention(16, kv_heads, head_dim, head_dim, window, **fields)


def test_a_token_leaves_a_key_and_a_value_of_every_kv_head_in_every_layer() -> None:
    # 80 layers x 2 x 8 heads x 128 x 2 B (Llama-3.1-70B)
    layout = kv_layout(load_model("llama-3.1-70b"))
    assert layout.bytes_per_token == 327_680
    assert layout.bytes_per_block == 16 * 327_680


@pytest.mark.parametrize(("tp", "heads"), [(1, 8), (2, 4), (8, 1), (16, 1), (32, 1)])
def test_kv_heads_are_divided_by_tensor_parallelism_then_replicated(tp: int, heads: int) -> None:
    layout = kv_layout(load_model("llama-3.1-8b"), tensor_parallel_size=tp)
    assert layout.bytes_per_token == 32 * 2 * heads * 128 * 2


@pytest.mark.parametrize(
    ("dtype", "size"), [("auto", 2), ("bf16", 2), ("fp8", 1), ("fp8_e5m2", 1), ("int8", 1), ("fp32", 4)]
)
def test_the_kv_dtype_scales_the_bytes(dtype: str, size: int) -> None:
    layout = kv_layout(load_model("llama-3.1-8b"), kv_cache_dtype=dtype)
    assert layout.bytes_per_token == 32 * 2 * 8 * 128 * size


def test_keys_and_values_of_unequal_width_are_each_counted() -> None:
    layer = LayerGroup(3, Attention(16, 4, 192, 128), None)
    assert kv_layout(spec(layer)).bytes_per_token == 3 * 4 * (192 + 128) * 2


def test_a_layer_that_shares_the_kv_of_another_stores_none() -> None:
    layers = LayerGroup(4, attention(2), None), LayerGroup(6, attention(2, kv_shared=True), None)
    assert kv_layout(spec(*layers)).bytes_per_token == 4 * 2 * 2 * 128 * 2


def test_a_latent_is_stored_once_and_not_divided_by_tensor_parallelism() -> None:
    model = load_model("deepseek-v3")
    assert kv_layout(model).bytes_per_token == 61 * 576 * 2 == 70_272
    assert kv_layout(model, tensor_parallel_size=8).bytes_per_token == 70_272
    assert kv_layout(model, kv_cache_dtype="fp8").bytes_per_token == 61 * 576


def test_a_sparse_indexer_adds_its_keys_and_packs_fp8_latents() -> None:
    # 128 fp8 values and one fp32 scale a token; fp8_ds_mla 656 B a token
    model = load_model("deepseek-v3.2")
    assert kv_layout(model).bytes_per_token == 61 * (1152 + 132)
    assert kv_layout(model, kv_cache_dtype="fp8").bytes_per_token == 61 * (656 + 132)
    assert kv_layout(load_model("glm-5")).bytes_per_token == 89_856 + 78 * 132


def test_windows_stop_growing_and_full_layers_do_not() -> None:
    layers = LayerGroup(4, attention(2), None), LayerGroup(12, attention(2, window=512), None)
    layout = kv_layout(spec(*layers))
    page = 2 * 16 * 2 * 128 * 2
    assert layout.bytes_per_block == 4 * page
    assert layout.n_groups == 4
    assert layout.bytes_per_token == 4 * page / 16
    assert layout.bytes_per_token_below_window == 16 * page / 16
    # full ceil(L / 16); window ceil((512 - 1 + 256) / 16) + 1 = 49, three times
    assert layout.request_blocks(10_000, 256) == 625 + 3 * 49
    assert layout.fixed_bytes(256) == 3 * 49 * layout.bytes_per_block
    assert layout.slope_bytes == layout.bytes_per_token


def test_chunked_layers_hold_a_chunk_and_the_step() -> None:
    layers = LayerGroup(4, attention(2), None), LayerGroup(12, attention(2, window=8192, chunked=True), None)
    layout = kv_layout(spec(*layers))
    assert layout.request_blocks(100_000, 2048) == 6250 + 3 * (8192 + 2048) // 16


def test_without_hybrid_allocation_windows_are_charged_as_full_layers() -> None:
    model = load_model("gemma-4-31b")
    assert kv_layout(model, kv_cache_dtype="bf16", hybrid=False).bytes_per_token == 901_120
    assert kv_layout(model, kv_cache_dtype="bf16").bytes_per_token == 10 * 2 * 4 * 512 * 2


def test_the_smaller_page_gets_the_larger_block() -> None:
    # 2 heads x 512 against 8 heads x 256: half the bytes, so twice the tokens
    layout = kv_layout(load_model("gemma-4-26b-a4b"), kv_cache_dtype="fp8")
    assert [(group.kind, group.block_tokens, group.copies) for group in layout.groups] == [
        ("full", 32, 1),
        ("window", 16, 5),
    ]


def test_types_of_almost_equal_size_share_the_larger_group() -> None:
    # 11 and 10 layers: the larger count, below 1.5 x the smaller, is the group; one padding layer
    layers = LayerGroup(11, attention(2), None), LayerGroup(10, attention(2, window=512), None)
    layout = kv_layout(spec(*layers))
    assert [group.copies for group in layout.groups] == [1, 1]
    assert layout.bytes_per_block == 11 * 2 * 16 * 2 * 128 * 2


@pytest.mark.parametrize(
    ("model", "dtype", "block"),
    [("qwen3-next-80b-a3b", "bf16", 544), ("qwen3.5-27b", "bf16", 784), ("qwen3.5-27b", "fp8", 1568)],
)
def test_an_attention_block_is_raised_to_the_recurrent_state(model: str, dtype: str, block: int) -> None:
    # the sizes vLLM prints: "Setting attention block size to 544 tokens", 784, 1568
    layout = kv_layout(load_model(model), kv_cache_dtype=dtype)
    assert layout.block_tokens == block
    assert {group.kind for group in layout.groups} == {"full", "recurrent"}


def test_a_recurrent_state_takes_one_block_a_group_whatever_the_length() -> None:
    layout = kv_layout(load_model("qwen3-next-80b-a3b"))
    assert layout.request_blocks(544 * 10, 8192) == 10 + 3
    assert layout.request_blocks(544 * 100, 8192) == 100 + 3
    aligned = kv_layout(load_model("qwen3-next-80b-a3b"), state_blocks=2)
    assert aligned.request_blocks(544 * 10, 8192) == 10 + 6


def test_only_recurrent_layers_keep_a_fixed_size() -> None:
    layer = LayerGroup(8, Recurrent("mamba2", 64 * 128, 1024, state_dtype="float32"), None)
    layout = kv_layout(spec(layer))
    assert layout.bytes_per_token == 0
    assert layout.request_blocks(1_000_000, 8192) == layout.request_blocks(10, 8192) == 1
    assert layout.bytes_per_block == layout.state_bytes == 8 * (64 * 128 * 4 + 1024 * 2)


def test_a_compressed_cache_is_fixed_plus_a_small_slope() -> None:
    """DeepSeek-V4-Flash: printed bytes / tokens fall from 92.62 to 4.05 KiB as the length grows."""
    layout = kv_layout(load_model("deepseek-v4-flash"), tensor_parallel_size=8)
    per_token = [
        layout.request_blocks(length, 8192) * layout.bytes_per_block / length for length in (2048, 1 << 20)
    ]
    assert 3.6 * 1024 < layout.bytes_per_token < 4.05 * 1024
    assert per_token[0] > 5 * per_token[1]
    # printed at a million tokens: 4.05 KiB
    assert per_token[1] / 1024 == pytest.approx(4.05, rel=0.03)
    assert layout == kv_layout(load_model("deepseek-v4-flash"))


def test_context_parallelism_divides_the_length_of_a_request() -> None:
    model = load_model("deepseek-v3")
    whole, quarter = kv_layout(model), kv_layout(model, decode_context_parallel_size=4)
    assert quarter.request_blocks(64_000, 8192) * 4 == whole.request_blocks(64_000, 8192)


@settings(deadline=None)
@given(MODELS, st.integers(1, 200_000), st.integers(1, 200_000), st.integers(1, 16384))
def test_a_longer_request_never_takes_fewer_blocks(model: str, a: int, b: int, tokens: int) -> None:
    layout = kv_layout(load_model(model))
    short, long = sorted((a, b))
    assert layout.request_blocks(short, tokens) <= layout.request_blocks(long, tokens)


@settings(deadline=None)
@given(MODELS, st.integers(0, 100_000), st.integers(1, 16384))
def test_the_longest_request_fits_and_one_token_more_does_not(model: str, blocks: int, tokens: int) -> None:
    layout = kv_layout(load_model(model))
    longest = layout.max_length(blocks, tokens, 1 << 22)
    if longest:
        assert layout.request_blocks(longest, tokens) <= blocks
    if longest < 1 << 22:
        assert layout.request_blocks(longest + 1, tokens) > blocks


@settings(deadline=None)
@given(MODELS, st.integers(100_000, 10_000_000), st.integers(1, 8192))
def test_blocks_of_a_long_request_are_fixed_plus_slope_to_one_block(
    model: str, length: int, tokens: int
) -> None:
    layout = kv_layout(load_model(model))
    exact = layout.request_blocks(length, tokens) * layout.bytes_per_block
    line = layout.fixed_bytes(tokens) + layout.slope_bytes * length
    assert line - 1 <= exact <= line + layout.bytes_per_block * layout.n_groups


@settings(deadline=None)
@given(MODELS, st.integers(1, 8))
def test_stages_of_a_pipeline_hold_the_whole_model_between_them(model: str, stages: int) -> None:
    loaded = load_model(model)
    held = stage_layers(loaded, stages)
    counts = [sum(stage.count(i) for stage in held) for i in range(len(loaded.layers))]
    assert counts == [group.count for group in loaded.layers]
    one, many = kv_layout(loaded), kv_layout(loaded, pipeline_parallel_size=stages)
    assert many.bytes_per_token == one.bytes_per_token
    assert len(many.stage_bytes_per_block) == stages
    # a stage that holds less than its share of a group pads it
    assert many.bytes_per_block >= one.bytes_per_block


@given(st.integers(1, 200), st.integers(1, 16))
def test_layers_are_dealt_out_evenly_and_the_last_stage_gets_no_more_than_its_share(n: int, k: int) -> None:
    if k > n:
        with pytest.raises(CapacityError, match="pipeline_parallel_size"):
            pipeline_partition(n, k)
        return
    share = pipeline_partition(n, k)
    assert sum(share) == n
    assert max(share) - min(share) <= 1
    assert share[-1] == min(share)


def test_impossible_layouts_are_refused_in_one_line() -> None:
    model = load_model("llama-3.1-8b")
    with pytest.raises(CapacityError, match=r"unknown KV cache dtype 'fp9'.*nearest: 'fp8'"):
        kv_layout(model, kv_cache_dtype="fp9")
    with pytest.raises(CapacityError, match="block_size is 0"):
        kv_layout(model, block_size=0)
    with pytest.raises(CapacityError, match="does not split 32 layers over 2 stages"):
        kv_layout(model, pipeline_parallel_size=2, pipeline_partition=[16, 32])


def test_early_engines_stored_latent_attention_as_padded_heads() -> None:
    # 27 layers x 16 heads x 2 x 256 x 2 B against 27 x 576 x 2 B
    model = load_model("deepseek-v2-lite")
    assert kv_layout(model, expanded=True).bytes_per_token == 442_368
    assert kv_layout(model).bytes_per_token == 31_104


def test_a_model_without_caches_has_no_groups() -> None:
    layout = kv_layout(spec(LayerGroup(2, None, None)))
    assert layout.groups == ()
    assert layout.notes


def test_pages_that_do_not_divide_are_padded_with_a_note() -> None:
    layers = LayerGroup(2, attention(3), None), LayerGroup(2, attention(2, window=512), None)
    layout = kv_layout(spec(*layers))
    assert layout.bytes_per_block == 2 * 2 * 16 * 3 * 128 * 2
    assert "do not divide" in layout.notes[0]


def test_window_layers_of_a_latent_keep_their_own_window() -> None:
    mixer = MultiHeadLatentAttention(8, 0, 512, 64, 128, 128, window=128, compress_ratio=0)
    layout = kv_layout(spec(LayerGroup(2, mixer, None)))
    assert layout.bytes_per_token == 0
    assert [group.kind for group in layout.groups] == ["window"]
