"""What the reader makes of a ``quantization_config``, whoever wrote it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from membound.hwmodels.hf_config import read_config
from membound.hwmodels.spec import MoEFFN

from .configs import LLAMA

DEEPSEEK = LLAMA | {
    "model_type": "deepseek_v3", "num_key_value_heads": 8, "q_lora_rank": 48, "kv_lora_rank": 32,
    "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "moe_intermediate_size": 24,
    "n_routed_experts": 6, "n_shared_experts": 2, "num_experts_per_tok": 2, "first_k_dense_replace": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, ("fp8", "fp8", 128, None)),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, ("int4", "bf16", 128, None)),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, ("int8", "bf16", 0, None)),
        ({"quant_method": "awq", "bits": 4, "group_size": 64}, ("int4", "bf16", 64, None)),
        ({"quant_method": "mxfp4"}, ("mxfp4", "bf16", 32, None)),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, ("int4", "bf16", 64, None)),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, ("nvfp4", "nvfp4", 16, None)),
        (
            {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"},
            ("fp8", "fp8", 0, "fp8"),
        ),
        (
            {"quant_method": "compressed-tensors",
             "kv_cache_scheme": {"num_bits": 8, "type": "float"},
             "config_groups": {"group_0": {
                 "weights": {"num_bits": 8, "type": "int"},
                 "input_activations": {"num_bits": 8, "type": "int"}}}},
            ("int8", "int8", 0, "fp8"),
        ),
        (
            {"quant_method": "compressed-tensors",
             "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int", "group_size": 32},
                                           "input_activations": None}}},
            ("int4", "bf16", 32, None),
        ),
    ],
)  # fmt: skip
def test_every_quantization_format_gives_dtypes_and_group_size(
    section: dict[str, object], expected: tuple[str, str, int, str | None]
) -> None:
    q = read_config(LLAMA | {"quantization_config": section}).quantization
    assert q is not None
    assert (q.weights, q.activations, q.group_size, q.kv_cache) == expected


def test_excluded_modules_stay_in_the_model_dtype() -> None:
    group = {"group_0": {"weights": {"num_bits": 4, "type": "int", "group_size": 32}}}
    section = {
        "quant_method": "compressed-tensors",
        "config_groups": group,
        "ignore": [
            "lm_head",
            "re:.*self_attn.*",
            "re:.*shared_experts.*",
            r"re:.*mlp\.(gate|up|gate_up|down)_proj.*",
        ],
    }
    dense, experts = read_config(DEEPSEEK | {"quantization_config": section}).layers
    assert isinstance(experts.ffn, MoEFFN)
    assert not any(linear.quantized for linear in (*dense.linears, *experts.linears))
    assert all(linear.quantized for linear in experts.ffn.expert_linears)


@pytest.mark.parametrize("pattern", ["model.layers.2.self_attn", "model.layers.*.self_attn*", "self_attn"])
def test_exclusions_may_be_names_globs_or_parts(pattern: str) -> None:
    section = {"quant_method": "modelopt", "quant_algo": "NVFP4", "exclude_modules": [pattern, "lm_head"]}
    group = read_config(LLAMA | {"quantization_config": section}).layers[0]
    flags = {linear.name: linear.quantized for linear in group.linears}
    assert flags == {"qkv_proj": False, "o_proj": False, "gate_up_proj": True, "down_proj": True}


def test_quantization_written_beside_the_config_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    sidecar = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(sidecar))
    model = read_config(tmp_path)
    assert model.id == tmp_path.name
    assert model.quantization is not None
    assert (model.quantization.weights, model.quantization.kv_cache) == ("fp8", "fp8")
