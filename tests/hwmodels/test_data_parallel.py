"""Data-parallel attention: copies of everything but the routed experts, in which all copies' tokens meet."""

from __future__ import annotations

import numpy as np
import pytest
from membound.hwmodels.capacity import kv_pool
from membound.hwmodels.device import load_device
from membound.hwmodels.engine import load_engine
from membound.hwmodels.errors import CapacityError
from membound.hwmodels.kernelcall import StepBatch, lower_step
from membound.hwmodels.lowering import Parallelism, lower_model
from membound.hwmodels.model import load_model
from membound.hwmodels.pool import PoolSettings
from membound.hwmodels.precision import Quantization
from membound.hwmodels.stepmodel import StepModel
from membound.hwmodels.timing.allreduce import AllReduceParams, allreduce_seconds
from membound.hwmodels.weights import weight_shards

from .physics import EXPERTS, QWEN3_14B, Device, Engine


def copies(dp: int, tp: int = 1, *, expert_parallel: bool = True, model=EXPERTS) -> StepModel:
    ranks = Parallelism(tp, data_parallel_size=dp, expert_parallel=expert_parallel)
    return StepModel(Device(), Engine(), model, ranks, Quantization())


def test_a_dense_model_has_nothing_to_share() -> None:
    """Copies of it are replicas: a step of one does not know the others."""
    alone, four = copies(1, model=QWEN3_14B), copies(4, model=QWEN3_14B)
    assert four.plan == alone.plan
    assert four.step_ns(8, 8000, 1000, (), 8) == alone.step_ns(8, 8000, 1000, (), 8)


@pytest.mark.parametrize("expert_parallel", [True, False])
def test_the_experts_are_spread_over_all_ranks_and_the_rest_over_one_copy_s(expert_parallel: bool) -> None:
    plan = copies(2, 2, expert_parallel=expert_parallel).plan
    layer, alone = plan.layers[0], copies(1, 2, expert_parallel=expert_parallel).plan.layers[0]
    assert layer.moe is not None
    assert (layer.moe.tensor_parallel, layer.moe.expert_parallel) == ((1, 4) if expert_parallel else (4, 1))
    assert layer.linears == alone.linears
    assert layer.attention == alone.attention
    assert (layer.allreduces, layer.exchanges) == (1, 1)
    assert (alone.allreduces, alone.exchanges) == (2, 0)


@pytest.mark.parametrize("expert_parallel", [True, False])
def test_the_work_of_all_ranks_together_is_that_of_the_tokens_of_all_copies(expert_parallel: bool) -> None:
    one = lower_model(EXPERTS, Parallelism(), Quantization()).flop_per_token["bf16"]
    four = copies(4, expert_parallel=expert_parallel).plan.flop_per_token["bf16"]
    assert four == pytest.approx(one)


def test_each_expert_meets_the_tokens_of_all_copies() -> None:
    """Dealt out over four ranks with four times the tokens: more experts touched a rank's share, fewer weights held."""
    alone, four = copies(1), copies(4)
    (here,), (met,) = alone.tokens.experts, four.tokens.experts
    m = np.array([16.0])
    assert four.weight_bytes(np.array([16]))[0] < alone.weight_bytes(np.array([16]))[0]
    assert met.touched_bytes(m)[0] == met.statistics(4 * m)[0].active * met.expert_bytes * met.count
    assert here.touched_bytes(m)[0] > met.touched_bytes(m)[0]


def test_gathering_and_dealing_back_cost_an_all_reduce_of_all_copies_tokens() -> None:
    tokens = 256
    model = copies(4)
    found = model.tokens.parts(np.array([float(tokens)]))["communication"]
    params = AllReduceParams.from_lane(Device().lane("allreduce"))
    once = float(allreduce_seconds(model.chip, params, 4 * tokens * 2 * EXPERTS.hidden, 4))
    layers = sum(layer.count for layer in model.plan.layers if layer.moe is not None)
    assert float(np.asarray(found.seconds).sum()) == pytest.approx(layers * once)
    (call,) = ({c.name: c for c in lower_step(model.plan, StepBatch(tokens, tokens, 1, (), 0))}["exchange"],)
    assert (call.count, call.shape["group"]) == (layers, 4)
    assert call.cost.link_bytes == 2 * 3 / 4 * 4 * tokens * 2 * EXPERTS.hidden


def test_one_latent_head_is_copied_by_tensor_parallelism_and_not_by_copies_of_the_attention() -> None:
    """vllm-project/vllm#51454: eight copies hold nearly eight times the tokens of eight ranks of one copy."""
    device, engine, model = load_device("b200_sxm"), load_engine("vllm-0.24"), load_model("deepseek-v3")
    settings = PoolSettings(max_model_len=32_768)

    def tokens(**ranks: int) -> int:
        found = kv_pool(device, engine, model, Parallelism(**ranks, expert_parallel=True), settings)
        return found.num_gpu_blocks * found.block_size

    one = tokens(tensor_parallel_size=8)
    eight = 8 * tokens(data_parallel_size=8)
    assert 6 < eight / one < 8


def test_a_model_that_one_machine_does_not_hold_fits_over_copies_on_two() -> None:
    device, engine, model = load_device("h100_sxm"), load_engine("vllm-0.24"), load_model("deepseek-v3")
    settings = PoolSettings(max_model_len=16_384)
    with pytest.raises(CapacityError, match="does not fit"):
        kv_pool(device, engine, model, Parallelism(data_parallel_size=8, expert_parallel=True), settings)
    assert kv_pool(
        device, engine, model, Parallelism(data_parallel_size=16, expert_parallel=True), settings
    ).num_gpu_blocks


def test_experts_weigh_what_is_left_of_them_on_a_rank_and_the_rest_does_not_shrink() -> None:
    model = load_model("mixtral-8x7b")
    (one,), (four,) = (weight_shards(model, data_parallel_size=dp, expert_parallel=True) for dp in (1, 4))
    assert one.experts == 4 * four.experts
    assert one.layers == four.layers
