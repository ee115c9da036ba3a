"""What the reader makes of a ``config.json``: widths, windows, kinds of layer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from membound.hwmodels.errors import ModelConfigError
from membound.hwmodels.hf_config import read_config
from membound.hwmodels.params import parameter_count
from membound.hwmodels.spec import (
    Attention,
    DenseFFN,
    ModelSpec,
    MoEFFN,
    MultiHeadLatentAttention,
    Recurrent,
)

from .configs import LLAMA

SHARED = Path(__file__).resolve().parents[2].parent / "shared"
CONFIGS = SHARED / "hf_configs"
needs_shared = pytest.mark.skipif(not CONFIGS.is_dir(), reason="needs ../shared/hf_configs")


def attention(model: ModelSpec, group: int = 0) -> Attention:
    """The attention of one group of layers."""
    mixer = model.layers[group].mixer
    assert isinstance(mixer, Attention)
    return mixer


def kv_elements(model: ModelSpec) -> int:
    """Elements one token adds to the cache of all layers that keep every token."""
    total = 0
    for count, mixer in model.mixers():
        if isinstance(mixer, MultiHeadLatentAttention):
            total += count * (mixer.kv_lora_rank + mixer.qk_rope_head_dim)
        elif isinstance(mixer, Attention) and not mixer.kv_shared:
            total += count * mixer.n_kv_heads * (mixer.head_dim + mixer.v_head_dim)
    return total


def linears(model: ModelSpec, group: int = 0) -> dict[str, tuple[int, int]]:
    """Name -> (n, k) of the matrices of one group."""
    return {linear.name: (linear.n, linear.k) for linear in model.layers[group].linears}


def test_a_llama_layer_has_four_fused_matrices() -> None:
    model = read_config(LLAMA, "tiny")
    assert linears(model) == {
        "qkv_proj": (64 + 2 * 2 * 8, 64),
        "o_proj": (64, 64),
        "gate_up_proj": (192, 64),
        "down_proj": (64, 96),
    }
    assert model.layers[0].norm_params == 128
    assert model.other_params == 64
    assert (model.n_layers, model.order, model.rotary_dim) == (3, (0, 0, 0), 8)
    assert model.notes == ()


def test_a_declared_head_dim_wins_and_null_counts_as_absent() -> None:
    assert attention(read_config(LLAMA | {"head_dim": 24})).head_dim == 24
    assert attention(read_config(LLAMA | {"head_dim": None})).head_dim == 8


def test_j01_a_declared_head_dim_is_not_hidden_over_heads() -> None:
    model = read_config(LLAMA | {"hidden_size": 3584, "num_attention_heads": 16, "head_dim": 256})
    assert attention(model).head_dim == 256
    assert (3584 / 16) / attention(model).head_dim == 0.875


def test_j03_null_head_dim_of_mixtral_8x22b_means_128() -> None:
    model = read_config(
        LLAMA | {"hidden_size": 6144, "num_attention_heads": 48, "num_key_value_heads": 8, "head_dim": None}
    )
    assert attention(model).head_dim == 128


@pytest.mark.parametrize("case", ["absent", "null"])
def test_j05_without_kv_heads_there_are_as_many_as_query_heads(case: str) -> None:
    config = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}
    model = read_config(config | ({} if case == "absent" else {"num_key_value_heads": None}))
    assert attention(model).n_kv_heads == 8


def test_j07_falcon_has_one_kv_head_where_multi_query_says_so_and_grouped_ones_where_named() -> None:
    falcon_7b = {
        "model_type": "falcon", "hidden_size": 4544, "n_layer": 32, "n_head": 71, "multi_query": True,
        "parallel_attn": True, "vocab_size": 65024,
    }  # fmt: skip
    falcon_40b = {
        "model_type": "RefinedWeb", "hidden_size": 8192, "n_layer": 60, "n_head": 128, "n_head_kv": 8,
        "parallel_attn": True, "vocab_size": 65024,
    }  # fmt: skip
    assert 2 * kv_elements(read_config(falcon_7b)) == 8192
    assert 2 * kv_elements(read_config(falcon_40b)) == 122880
    assert attention(read_config(falcon_7b)).n_kv_heads == 1


def test_j09_opt_350m_has_a_narrow_embedding_and_a_wide_residual() -> None:
    model = read_config(
        {
            "model_type": "opt", "hidden_size": 1024, "word_embed_proj_dim": 512, "ffn_dim": 4096,
            "num_attention_heads": 16, "num_hidden_layers": 24, "vocab_size": 50272,
            "max_position_embeddings": 2048, "do_layer_norm_before": False,
        }
    )  # fmt: skip
    assert (model.hidden, model.embedding_dim) == (1024, 512)
    assert isinstance(model.layers[0].ffn, DenseFFN)
    assert model.layers[0].ffn.intermediate == 4096
    assert parameter_count(model).total == 331_196_416


PATTERN_56B = (
    "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*"
    "-M-M-M-M-M*-M-M-M-M-M-"
)
NEMOTRON_56B = {
    "model_type": "nemotron_h", "hidden_size": 8192, "num_hidden_layers": 118, "num_attention_heads": 64,
    "num_key_value_heads": 8, "attention_head_dim": 128, "hybrid_override_pattern": PATTERN_56B,
    "intermediate_size": 32768, "mamba_num_heads": 256, "mamba_head_dim": 64, "n_groups": 8,
    "ssm_state_size": 256, "conv_kernel": 4, "vocab_size": 131072, "max_position_embeddings": 8192,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip


def test_j11_a_pattern_string_says_what_each_layer_is() -> None:
    model = read_config(NEMOTRON_56B)
    kinds = {Attention: 0, Recurrent: 0, type(None): 0}
    for group in model.layers:
        kinds[type(group.mixer)] += group.count
    assert kinds == {Attention: 10, Recurrent: 54, type(None): 54}
    assert 2 * kv_elements(model) == 40960
    assert parameter_count(model).total == pytest.approx(56e9, rel=0.01)


def test_a_pattern_of_the_wrong_length_or_letter_is_refused() -> None:
    with pytest.raises(ModelConfigError, match="117 letters; allowed: num_hidden_layers 118"):
        read_config(NEMOTRON_56B | {"hybrid_override_pattern": PATTERN_56B[1:]})
    with pytest.raises(ModelConfigError, match=r"out of M \* - E"):
        read_config(NEMOTRON_56B | {"hybrid_override_pattern": "X" * 118})


DEEPSEEK = LLAMA | {
    "model_type": "deepseek_v3", "num_key_value_heads": 8, "q_lora_rank": 48, "kv_lora_rank": 32,
    "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "moe_intermediate_size": 24,
    "n_routed_experts": 6, "n_shared_experts": 2, "num_experts_per_tok": 2, "first_k_dense_replace": 1,
}  # fmt: skip


def test_latent_attention_caches_one_latent_whatever_the_kv_heads_say() -> None:
    model = read_config(DEEPSEEK | {"head_dim": 64, "num_key_value_heads": 8})
    assert kv_elements(model) == 3 * (32 + 8)
    assert linears(model) == {
        "fused_qkv_a_proj": (48 + 32 + 8, 64),
        "q_b_proj": (8 * 24, 48),
        "kv_b_proj": (8 * 32, 32),
        "o_proj": (64, 8 * 16),
        "gate_up_proj": (192, 64),
        "down_proj": (64, 96),
    }


def test_without_a_query_latent_the_query_is_projected_directly() -> None:
    names = linears(read_config(DEEPSEEK | {"q_lora_rank": None}))
    assert names["q_proj"] == (8 * 24, 64)
    assert names["kv_a_proj"] == (40, 64)


def test_the_first_layers_are_dense_and_the_others_hold_experts() -> None:
    dense, experts = read_config(DEEPSEEK).layers
    assert (dense.count, experts.count) == (1, 2)
    assert isinstance(dense.ffn, DenseFFN)
    assert isinstance(experts.ffn, MoEFFN)
    assert (experts.ffn.n_experts, experts.ffn.top_k, experts.ffn.intermediate) == (6, 2, 24)
    assert experts.ffn.shared_intermediate == 48
    router = experts.ffn.linears[0]
    assert (router.name, router.n, router.bias, router.quantized) == ("router", 6, True, False)


def test_a_sparse_indexer_adds_its_key_and_its_matrices() -> None:
    index = {"index_n_heads": 4, "index_head_dim": 16, "index_topk": 64}
    mixer = read_config(DEEPSEEK | {"model_type": "deepseek_v32"} | index).layers[0].mixer
    assert isinstance(mixer, MultiHeadLatentAttention)
    assert (mixer.index_heads, mixer.index_head_dim, mixer.index_topk) == (4, 16, 64)
    assert {"indexer_wq_b", "indexer_wk", "indexer_weights_proj"} <= {linear.name for linear in mixer.linears}


def test_deepseek_v4_layers_differ_by_how_far_they_compress() -> None:
    model = read_config(
        LLAMA | {
            "model_type": "deepseek_v4", "num_key_value_heads": 1, "head_dim": 32, "qk_rope_head_dim": 8,
            "q_lora_rank": 16, "o_lora_rank": 16, "o_groups": 2, "sliding_window": 16, "hc_mult": 4,
            "compress_ratios": [0, 4, 128, 0], "index_n_heads": 4, "index_head_dim": 16, "index_topk": 8,
            "moe_intermediate_size": 24, "n_routed_experts": 6, "num_experts_per_tok": 2,
            "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
        }
    )  # fmt: skip
    mixers = [group.mixer for group in model.layers]
    assert [(m.compress_ratio, m.window, m.index_head_dim) for m in mixers if m] == [
        (0, 16, 0), (4, 16, 16), (128, 16, 0),
    ]  # fmt: skip
    assert model.quantization is not None
    assert model.quantization.expert_weights == "mxfp4"


def test_windows_follow_flags_patterns_and_layer_types() -> None:
    def windows(**keys: object) -> list[int]:
        model = read_config(LLAMA | {"sliding_window": 16, "num_hidden_layers": 6} | keys)
        return [attention(model, group).window for group in model.order]

    assert windows() == [16] * 6
    assert windows(sliding_window=128) == [0] * 6, "a window as long as the context never binds"
    assert windows(model_type="qwen2", use_sliding_window=False) == [0] * 6
    assert windows(model_type="qwen2", use_sliding_window=True, max_window_layers=4) == [0] * 4 + [16] * 2
    assert windows(model_type="gemma2") == [16, 0] * 3
    assert windows(model_type="gemma3_text") == [16] * 5 + [0]
    assert windows(model_type="gemma3_text", sliding_window_pattern=3) == [16, 16, 0] * 2
    assert windows(layer_types=["full_attention", "sliding_attention"] * 3) == [0, 16] * 3


def test_llama_4_has_chunks_and_every_fourth_layer_sees_everything() -> None:
    model = read_config(
        LLAMA
        | {"model_type": "llama4_text", "num_hidden_layers": 8, "attention_chunk_size": 32,
           "intermediate_size_mlp": 192, "num_local_experts": 4, "num_experts_per_tok": 1,
           "interleave_moe_layer_step": 2}
    )  # fmt: skip
    chunks = [(attention(model, g).window, attention(model, g).chunked) for g in model.order]
    assert chunks == ([(32, True)] * 3 + [(0, False)]) * 2
    ffns = [model.layers[g].ffn for g in model.order]
    assert [isinstance(ffn, MoEFFN) for ffn in ffns] == [False, True] * 4
    assert {ffn.intermediate for ffn in ffns if isinstance(ffn, DenseFFN)} == {192}
    assert {ffn.shared_intermediate for ffn in ffns if isinstance(ffn, MoEFFN)} == {96}


def test_gemma_4_global_layers_have_their_own_heads_and_no_value_matrix() -> None:
    model = read_config(
        LLAMA
        | {"model_type": "gemma4_text", "num_hidden_layers": 2, "head_dim": 8, "global_head_dim": 16,
           "num_global_key_value_heads": 1, "sliding_window": 16, "attention_k_eq_v": True,
           "layer_types": ["sliding_attention", "full_attention"]}
    )  # fmt: skip
    local, far = attention(model, 0), attention(model, 1)
    assert (local.head_dim, local.n_kv_heads, local.window) == (8, 2, 16)
    assert (far.head_dim, far.n_kv_heads, far.v_head_dim, far.window) == (16, 1, 16, 0)
    assert local.linears[0].n == 8 * 8 + 2 * 2 * 8
    assert far.linears[0].n == 8 * 16 + 16
    assert model.tied_embeddings


def test_gemma_4_layers_that_share_kv_store_none_and_have_no_matrix_for_it() -> None:
    model = read_config(
        LLAMA
        | {"model_type": "gemma4_text", "num_kv_shared_layers": 1, "hidden_size_per_layer_input": 4,
           "layer_types": ["full_attention"] * 3}
    )  # fmt: skip
    owner, sharer = attention(model, 0), attention(model, 1)
    assert (owner.kv_shared, sharer.kv_shared) == (False, True)
    assert sharer.linears[0].n == 8 * 8
    assert model.per_layer_embedding_params == 100 * 3 * 4
    assert [linear.name for linear in model.linears] == ["per_layer_model_projection"]


def test_linear_attention_layers_keep_a_state_of_fixed_size() -> None:
    model = read_config(
        LLAMA
        | {"model_type": "qwen3_next", "num_hidden_layers": 4, "linear_num_key_heads": 2,
           "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 16,
           "linear_conv_kernel_dim": 4, "full_attention_interval": 4, "mamba_ssm_dtype": "float32"}
    )  # fmt: skip
    recurrent = model.layers[0].mixer
    assert isinstance(recurrent, Recurrent)
    assert model.order == (0, 0, 0, 1)
    assert recurrent.state_elements == 4 * 8 * 16
    assert recurrent.conv_elements == (2 * 16 + 64) * 3
    assert recurrent.state_dtype == "float32"
    assert linears(model, 1)["qkv_proj"] == (2 * 64 + 2 * 16, 64), "the query matrix also makes the gate"


def test_unequal_key_and_value_widths_and_sinks_of_mimo() -> None:
    model = read_config(
        LLAMA
        | {"model_type": "mimo_v2_flash", "head_dim": 12, "v_head_dim": 8, "swa_head_dim": 12,
           "swa_v_head_dim": 8, "swa_num_key_value_heads": 4, "sliding_window": 16,
           "hybrid_layer_pattern": [0, 1, 1], "add_swa_attention_sink_bias": True}
    )  # fmt: skip
    full, window = attention(model, 0), attention(model, 1)
    assert (full.n_kv_heads, full.head_dim, full.v_head_dim, full.sinks) == (2, 12, 8, False)
    assert (window.n_kv_heads, window.window, window.sinks) == (4, 16, True)
    assert full.linears[0].n == 8 * 12 + 2 * (12 + 8)
    assert full.linears[1].k == 8 * 8
    assert kv_elements(model) == 2 * 20 + 2 * 4 * 20


def test_searched_blocks_may_lack_attention_and_differ_in_width() -> None:
    attend = {"n_heads_in_group": 4, "no_op": False}
    model = read_config(
        LLAMA
        | {"model_type": "nemotron-nas", "num_hidden_layers": 2, "intermediate_size": None,
           "num_key_value_heads": None,
           "block_configs": [
               {"attention": attend, "ffn": {"ffn_mult": 2.0}},
               {"attention": {"no_op": True, "n_heads_in_group": None}, "ffn": {"ffn_mult": 12.5}},
           ]}
    )  # fmt: skip
    assert attention(model, 0).n_kv_heads == 2
    assert model.layers[1].mixer is None
    widths = [group.ffn.intermediate for group in model.layers if isinstance(group.ffn, DenseFFN)]
    assert widths == [256, 768], "2/3 of the multiple, rounded up to 256"
    assert [group.norm_params for group in model.layers] == [128, 64]


def test_infinity_in_a_file_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "hybrid.json"
    text = json.dumps(NEMOTRON_56B | {"time_step_limit": [0.0, float("inf")]})
    assert "Infinity" in text
    path.write_text(text)
    assert read_config(path).n_layers == 118


def test_an_unknown_model_type_is_read_by_its_keys_and_said_so() -> None:
    model = read_config(LLAMA | {"model_type": "brand_new"})
    assert parameter_count(model) == parameter_count(read_config(LLAMA))
    assert any("unknown model_type 'brand_new'" in note for note in model.notes)
    hybrid = read_config(LLAMA | {"model_type": "brand_new", "mamba_d_state": 16})
    assert any("recurrent layers" in note for note in hybrid.notes)


def test_without_model_type_the_architecture_names_the_family() -> None:
    config = {key: value for key, value in LLAMA.items() if key != "model_type"}
    model = read_config(config | {"architectures": ["Gemma2ForCausalLM"]})
    assert model.architecture == "gemma2"
    assert model.tied_embeddings
    assert any("gemma2" in note for note in model.notes)


def test_attention_fields_alone_are_read_with_a_note_and_no_vocabulary() -> None:
    keys = ("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "hidden_size")
    model = read_config({key: LLAMA[key] for key in keys} | {"head_dim": 8})
    assert model.vocab == 0
    assert model.layers[0].ffn is None
    assert any("attention only" in note for note in model.notes)


@given(
    kv_heads=st.sampled_from([1, 2, 4, 8]),
    group=st.integers(1, 8),
    head_dim=st.integers(1, 64),
    layers=st.integers(1, 12),
    intermediate=st.integers(1, 300),
    vocab=st.integers(1, 500),
    tied=st.booleans(),
)
@settings(deadline=None)
def test_the_sum_over_matrices_is_the_closed_form(
    kv_heads: int, group: int, head_dim: int, layers: int, intermediate: int, vocab: int, tied: bool
) -> None:
    heads, hidden = kv_heads * group, 48
    model = read_config(
        LLAMA
        | {"hidden_size": hidden, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
           "head_dim": head_dim, "num_hidden_layers": layers, "intermediate_size": intermediate,
           "vocab_size": vocab, "tie_word_embeddings": tied}
    )  # fmt: skip
    per_layer = 2 * hidden * head_dim * (heads + kv_heads) + 3 * hidden * intermediate + 2 * hidden
    assert parameter_count(model).total == vocab * hidden * (1 if tied else 2) + layers * per_layer + hidden
    assert kv_elements(model) == layers * 2 * kv_heads * head_dim


@needs_shared
def test_every_shared_config_is_read() -> None:
    paths = sorted(CONFIGS.glob("*.json"))
    assert len(paths) >= 90
    for path in paths:
        model = read_config(path)
        assert model.n_layers == len(model.order) > 0, path.name
        assert all("\n" not in note for note in model.notes), path.name
        for index, group in enumerate(model.layers):
            assert model.order.count(index) == group.count, path.name
            assert group.mixer is not None or group.ffn is not None, path.name


def shared_kv_bytes(name: str, dtype_bytes: int = 2) -> int:
    """KV bytes a token adds, from a shared config."""
    return dtype_bytes * kv_elements(read_config(CONFIGS / f"{name}.json"))


@needs_shared
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("falcon-7b", 8192),
        ("falcon-40b", 122880),
        ("nemotron-h-56b-base-8k", 40960),
        ("deepseek-v3", 70272),
        ("kimi-k2-instruct", 70272),
        ("deepseek-v2-lite", 31104),
        ("glm-5", 89856),
        ("llama-3.1-70b", 327680),
        ("qwen2.5-7b-instruct", 57344),
        ("llama-3.1-8b", 131072),
    ],
)
def test_kv_bytes_per_token_of_shared_configs(name: str, expected: int) -> None:
    assert shared_kv_bytes(name) == expected


@needs_shared
def test_the_config_import_cases_are_all_covered_here() -> None:
    lines = (SHARED / "cases" / "cases.jsonl").read_text(encoding="utf-8").splitlines()
    found = {case["id"]: case for case in map(json.loads, lines) if case["theme"] == "config_import"}
    assert set(found) == {"J01", "J03", "J05", "J07", "J09", "J11", "J13", "J15", "J17", "J19"}
    assert found["J07"]["expected"] == {"falcon7b": 8192, "falcon40b": 122880}
    assert found["J11"]["expected"]["kv_bytes_per_token"] == 40960
    assert found["J19"]["expected"]["kv_bytes_per_token"] == shared_kv_bytes("glm-5")
    latent = found["J13"]
    for name, total, active, kv in zip(
        latent["inputs"]["models"], latent["expected"]["total_b"], latent["expected"]["active_b"],
        latent["expected"]["kv_bytes_per_token"], strict=True,
    ):  # fmt: skip
        count = parameter_count(read_config(CONFIGS / f"{name}.json"))
        assert count.total / 1e9 == pytest.approx(total, rel=0.005)
        assert count.active / 1e9 == pytest.approx(active, rel=0.005)
        assert shared_kv_bytes(name) == kv
    tied = found["J15"]["expected"]
    count = parameter_count(read_config(CONFIGS / "gemma-2-9b.json"))
    assert count.total / 1e9 == pytest.approx(tied["total_b_tied"], rel=0.005)
    assert (count.total + count.embedding) / 1e9 == pytest.approx(tied["total_b_untied"], rel=0.005)
