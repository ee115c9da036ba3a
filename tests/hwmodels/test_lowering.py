"""Lowering: FLOP and bytes of known models by hand, and conservation under tensor parallelism."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from membound.hwmodels.kernelcall import OpCost, StepBatch, keys_read, lower_step, prefill_pairs
from membound.hwmodels.lowering import ModelPlan, Parallelism, UnsupportedError, lower_model
from membound.hwmodels.model import load_model
from membound.hwmodels.precision import Quantization, linear_precision
from membound.hwmodels.spec import WeightQuantization
from membound.hwmodels.weights import weight_shards

from .physics import ALL, EXPERTS, LATENT, QWEN3_14B, SMALL

BF16 = Quantization()


def plan_of(
    spec: object = QWEN3_14B, tp: int = 1, quantization: Quantization = BF16, **more: bool
) -> ModelPlan:
    return lower_model(spec, Parallelism(tp, **more), quantization)  # type: ignore[arg-type]


def cost_of(plan: ModelPlan, batch: StepBatch) -> OpCost:
    total = OpCost()
    for call in lower_step(plan, batch):
        total = total + call.cost.times(call.count)
    return total


def test_qwen3_14b_reads_its_published_weights_once_per_step() -> None:
    # 14.768 B parameters less the input embedding (151,936 x 5,120) and the norms: 27.98 GB in 16 bit
    assert plan_of().dense_weight_bytes == pytest.approx(27.98e9, rel=1e-3)


def test_work_per_token_is_two_flop_a_weight() -> None:
    plan = plan_of()
    per_token = plan.flop_per_token["bf16"] + plan.head.flop_per_token
    assert per_token == plan.dense_weight_bytes  # 2 FLOP and 2 bytes a weight


def test_kv_bytes_per_token_of_qwen3_14b() -> None:
    assert plan_of().kv_bytes_per_token == 40 * 2 * 8 * 128 * 2
    assert plan_of(quantization=Quantization(kv_cache="fp8")).kv_bytes_per_token == 40 * 2 * 8 * 128


@pytest.mark.parametrize("name", ["dense", "experts"])
def test_a_decode_reads_a_key_once_whatever_its_query_heads(name: str) -> None:
    plan = plan_of(ALL[name])
    short, long = (cost_of(plan, StepBatch(8, 8 * context, context, (), 8)) for context in (700, 701))
    assert long.kv_bytes - short.kv_bytes == 8 * plan.kv_bytes_per_token


def test_a_query_against_a_key_is_two_flop_an_element_of_key_and_value() -> None:
    short, long = (cost_of(plan_of(), StepBatch(8, 8 * context, context, (), 8)) for context in (700, 701))
    assert long.flop - short.flop == 8 * 40 * 2 * 40 * (128 + 128)


def test_a_latent_is_cached_whole_on_every_rank() -> None:
    assert plan_of(LATENT).kv_bytes_per_token == 3 * 576 * 2
    assert plan_of(LATENT, 8).kv_bytes_per_token == 3 * 576 * 2


def test_streamed_weights_are_the_stored_ones_without_the_embedding() -> None:
    for spec in ALL.values():
        stored = weight_shards(spec)[0]
        plan = plan_of(spec)
        experts = sum(y.count * y.moe.n_experts * y.moe.expert_bytes for y in plan.layers if y.moe)
        assert plan.dense_weight_bytes + experts == stored.layers + stored.experts + stored.head


@pytest.mark.parametrize("tp", [2, 4])
@pytest.mark.parametrize("name", ["dense", "windows", "experts"])
def test_ranks_together_do_the_work_of_one(name: str, tp: int) -> None:
    batch = StepBatch(8, 8 * 700, 900, ((300, 0), (64, 512)), 10)
    whole, rank = cost_of(plan_of(ALL[name]), batch), cost_of(plan_of(ALL[name], tp), batch)
    # Routers are replicated, so the ranks together do a little more.
    assert tp * rank.flop == pytest.approx(whole.flop, rel=2e-2)
    assert tp * rank.flop >= whole.flop * (1 - 1e-12)
    assert tp * rank.weight_bytes == pytest.approx(whole.weight_bytes, rel=2e-2)
    assert tp * rank.kv_bytes == pytest.approx(whole.kv_bytes)
    assert whole.link_bytes == 0.0 < rank.link_bytes


def test_fewer_kv_heads_than_ranks_are_replicated() -> None:
    assert plan_of(SMALL, 8).kv_bytes_per_token == plan_of(SMALL, 4).kv_bytes_per_token


def test_expert_parallel_ranks_hold_whole_experts() -> None:
    cut, dealt = plan_of(EXPERTS, 4).layers[0].moe, plan_of(EXPERTS, 4, expert_parallel=True).layers[0].moe
    assert cut is not None
    assert dealt is not None
    assert (cut.tensor_parallel, cut.expert_parallel) == (4, 1)
    assert (dealt.tensor_parallel, dealt.expert_parallel) == (1, 4)
    assert dealt.expert_bytes == 4 * cut.expert_bytes


def test_every_layer_sums_once_after_its_mixer_and_once_after_its_ffn() -> None:
    calls = [
        c for c in lower_step(plan_of(QWEN3_14B, 4), StepBatch(3, 300, 100, (), 3)) if c.family == "allreduce"
    ]
    assert sum(call.count for call in calls) == 80
    assert calls[0].shape["bytes"] == 3 * 5120 * 2


@pytest.mark.parametrize(("name", "sums"), [("minimax-m2.5", 1), ("qwen3-14b", 0), ("phi-4-mini", 0)])
def test_norms_over_the_heads_of_all_ranks_are_a_third_sum_of_eight_bytes_a_token(
    name: str, sums: int
) -> None:
    model = load_model(name)
    for tp in (1, 4):
        calls = lower_step(plan_of(model, tp), StepBatch(6, 600, 100, (), 6))
        found = [call for call in calls if (call.family, call.name) == ("allreduce", "norm sums")]
        assert sum(call.count for call in found) == (sums * model.n_layers if tp > 1 else 0)
        assert all(call.shape["bytes"] == 6 * 8.0 for call in found)


@settings(deadline=None)
@given(st.integers(1, 300), st.integers(0, 300), st.integers(0, 200))
def test_pairs_and_keys_of_a_chunk_are_those_counted_one_by_one(new: int, cached: int, window: int) -> None:
    views = [range(max(0, end - window) if window else 0, end) for end in range(cached + 1, cached + new + 1)]
    assert prefill_pairs(new, cached, window) == sum(len(view) for view in views)
    assert keys_read(new, cached, window) == len(set().union(*views))


def test_a_quantised_checkpoint_is_read_narrow_and_its_router_wide() -> None:
    quantized = replace(EXPERTS, quantization=WeightQuantization("fp8", "fp8", "fp8", 128))
    plan = plan_of(quantized)
    by_name = {matrix.name: matrix.precision for matrix in plan.layers[0].linears}
    assert by_name["router"].name == ""
    assert by_name["qkv_proj"].name.startswith("fp8")
    assert plan.layers[0].moe is not None
    assert plan.layers[0].moe.precision.compute == "fp8"


@pytest.mark.parametrize(
    ("weights", "name", "width", "compute"),
    [
        ("bf16", "", 2.0, "bf16"),
        ("fp8", "fp8", 1.0, "fp8"),
        ("w4a16", "w4a16", 0.5 + 2 / 128, "bf16"),
        ("w8a16", "w8a16", 1.0, "bf16"),
        ("w8a8", "int8", 1.0, "int8"),
        ("nvfp4", "nvfp4", 0.5625, "fp4"),
    ],
)
def test_weight_formats_set_width_and_compute(weights: str, name: str, width: float, compute: str) -> None:
    found = linear_precision(SMALL, Quantization(weights=weights))
    assert (found.name, found.weight_bytes, found.compute) == (name, width, compute)
    assert linear_precision(SMALL, Quantization(weights=weights, activations="bf16")).compute in (
        compute,
        "bf16",
    )


def test_what_is_not_built_is_refused_in_one_line() -> None:
    with pytest.raises(UnsupportedError, match="tensor_parallel_size is 16; allowed: at most 8"):
        plan_of(SMALL, 16)
