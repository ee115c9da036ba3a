"""Corners of the roofline, with the numbers worked by hand.

A step can never beat what physics allows: reading the weights and the cache once over the datasheet's
bandwidth, or multiplying at the datasheet's peak. Between the corners is the ridge, where a kernel spends as
long computing as reading.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from membound.hwmodels.device import DeviceProfile, list_devices, load_device
from membound.hwmodels.engine import load_engine
from membound.hwmodels.model import list_models, load_model
from membound.hwmodels.params import linear_params, parameter_count
from membound.hwmodels.spec import Attention, DenseFFN, ModelSpec
from membound.hwmodels.stepmodel import StepModel
from membound.hwmodels.timing.form import Chip
from membound.hwmodels.timing.gemm import GemmParams, gemm_time

BYTES = 2.0  # of an unquantised weight, and of an element of the cache


def is_dense(model: ModelSpec) -> bool:
    attends = all(isinstance(group.mixer, Attention | None) for group in model.layers)
    return (
        attends
        and all(isinstance(group.ffn, DenseFFN | None) for group in model.layers)
        and model.quantization is None
    )


def ids(entries: object) -> list[str]:
    return [entry if isinstance(entry, str) else entry.id for entry in entries]  # type: ignore[union-attr,attr-defined]


DEVICES = ids(list_devices())


@cache
def dense_models() -> tuple[ModelSpec, ...]:
    found = tuple(model for model in map(load_model, ids(list_models())) if is_dense(model))
    assert len(found) >= 30
    return found


@cache
def step_model(device: str, model: str) -> StepModel:
    return StepModel(load_device(device), load_engine("vllm-0.24"), load_model(model))


def matrix_params(model: ModelSpec) -> int:
    """Count every weight a token is multiplied with: all matrices of all layers, and the output head."""
    layers = sum(group.count * linear_params(group.linears) for group in model.layers)
    return layers + linear_params(model.linears) + model.vocab * model.embedding_dim


def kv_bytes(model: ModelSpec, context: int) -> float:
    """Count what one decode step reads of one sequence's cache."""
    return sum(
        count
        * mixer.n_kv_heads
        * (mixer.head_dim + mixer.v_head_dim)
        * BYTES
        * min(context, mixer.window or context)
        for count, mixer in model.mixers()
        if isinstance(mixer, Attention)
    )


def test_the_matrices_counted_here_are_all_parameters_but_embeddings_and_vectors() -> None:
    # Llama-3.1-8B: 8,030,261,248 parameters; 128,256 x 4,096 of them embed, 65 vectors of 4,096 scale norms.
    model = load_model("llama-3.1-8b")
    assert matrix_params(model) == 8_030_261_248 - 128_256 * 4096 - 65 * 4096
    assert parameter_count(model).total == 8_030_261_248
    assert kv_bytes(model, 1000) == 2 * 32 * 8 * 128 * 2 * 1000  # K and V, layers, KV heads, width, bytes


@pytest.mark.parametrize("device", DEVICES)
def test_decoding_one_sequence_takes_at_least_weights_and_cache_over_bandwidth(device: str) -> None:
    bandwidth = load_device(device).hbm_bandwidth
    for model in dense_models():
        steps = step_model(device, model.id)
        for context in (1, 1000, 30_000):
            floor = (BYTES * matrix_params(model) + kv_bytes(model, context)) / bandwidth
            seconds = steps.step_ns(1, context, context, (), 1, contexts=[context]) / 1e9
            assert floor <= seconds, (model.id, context)


def test_llama_8b_on_h100_at_batch_one_by_hand() -> None:
    # 7.504e9 weights x 2 B / 3.35e12 B/s = 4.48 ms; 131,072 B of cache a token x 1,000 / 3.35e12 = 0.04 ms.
    # 161 matrices reach 0.89 of the bandwidth and cost 2.5 us each, 32 attentions 9.6 us and a split.
    seconds = step_model("h100_sxm", "llama-3.1-8b").step_ns(1, 1000, 1000, (), 1) / 1e9
    floor = 4.48e-3 + 0.04e-3
    assert floor < seconds < floor / 0.89 + 129 * 2.5e-6 + 32 * 20e-6 + 1.0e-3


OVER_BOOST = {"rtx_4090": 1.05}
"""How far a card was timed above the boost clock of its stated peak: consumer boards clock on while they stay cool."""


@pytest.mark.parametrize("device", DEVICES)
def test_no_prefill_computes_faster_than_the_peak(device: str) -> None:
    peaks = load_device(device).peak_flops
    for model in dense_models():
        steps = step_model(device, model.id)
        peak = peaks["fp16" if model.dtype == "float16" and "fp16" in peaks else "bf16"]
        for new in (512, 8192, 32_768):
            head = model.vocab * model.embedding_dim  # applied to one row, not to all
            flop = 2.0 * (matrix_params(model) - head) * new + 2.0 * head
            seconds = steps.step_ns(0, 0, 0, [(new, 0)], 1, contexts=[]) / 1e9
            assert flop / seconds <= peak * OVER_BOOST.get(device, 1.0), (model.id, new)


def test_a_long_prefill_of_llama_70b_on_h100_runs_at_a_plausible_share_of_the_peak() -> None:
    # Without attention: 68.45e9 weights in layers x 2 x 8,192 rows = 1.12 PFLOP, 1.13 s at 989.4 TFLOP/s. The
    # lane's ec of 0.86 and the engine's 0.85 bound the rate at 0.73 of the peak; pipeline fill, partly filled
    # waves, streaming kernels and attention take the rest.
    seconds = step_model("h100_sxm", "llama-3.1-70b").step_ns(0, 0, 0, [(8192, 0)], 1) / 1e9
    assert 0.55 < 1.1215e15 / 989.4e12 / seconds < 0.73


ROOFLINE = GemmParams(t0=0.0, ec=1.0, eb=1.0, q=3.0)
"""A device that reaches everything the datasheet promises, with a hard roofline."""


def ideal(peak: float, bandwidth: float) -> Chip:
    return Chip({"bf16": peak}, bandwidth, units=1.0, roofline3=True)


@settings(deadline=None, max_examples=100)
@given(
    n=st.integers(1024, 65_536),
    k=st.integers(1024, 65_536),
    peak=st.floats(5e13, 5e15),
    ridge=st.floats(20.0, 450.0),
)
def test_below_the_ridge_only_memory_costs_and_above_it_only_compute(
    n: int, k: int, peak: float, ridge: float
) -> None:
    # m rows: FLOP 2 m n k over peak C; bytes 2 (n k + m k + m n) over bandwidth B. With R = C / B [FLOP/B]
    # they take equally long at m = R n k / (n k - R (n + k)).
    chip = ideal(peak, peak / ridge)
    left = n * k - ridge * (n + k)
    if left <= 0:  # too small a matrix: its activations alone keep the memory busy longer, at any m
        assert float(gemm_time(chip, ROOFLINE, 1e6, n, k).compute) == 0.0
        return
    at = ridge * n * k / left
    below, above = (gemm_time(chip, ROOFLINE, at * factor, n, k) for factor in (1 - 1e-6, 1 + 1e-6))
    assert float(below.compute) == 0.0
    assert float(above.hbm_weights) == 0.0 == float(above.hbm_activations)
    assert float(below.seconds) == pytest.approx(2.0 * at * n * k / peak, rel=1e-5)


def test_the_ridge_of_an_h100_is_at_295_flop_per_byte() -> None:
    # 989.4e12 / 3.35e12 = 295.3 FLOP/B. A weight of 2 B does 2 FLOP a row, so a large matrix turns
    # compute-bound near 295 rows; 8,192 x 8,192 with its activations at 295.3 / (1 - 590.6 / 8,192) = 318.3.
    h100 = load_device("h100_sxm")
    chip = ideal(h100.peak_flops["bf16"], h100.hbm_bandwidth)
    for rows, by_memory in ((1, True), (295, True), (318, True), (319, False), (4096, False)):
        assert (float(gemm_time(chip, ROOFLINE, rows, 8192, 8192).compute) == 0.0) is by_memory
    assert float(gemm_time(chip, ROOFLINE, 1, 8192, 8192).seconds) == pytest.approx(
        134.25e6 / 3.35e12, rel=1e-4
    )
    assert float(gemm_time(chip, ROOFLINE, 4096, 8192, 8192).seconds) == pytest.approx(
        5.4976e11 / 989.4e12, rel=1e-4
    )


def test_a_fitted_lane_reaches_both_asymptotes_of_its_roofline() -> None:
    # One row of 16,384 x 16,384: 537 MB at 0.89 of 3.35e12 B/s. 8,192 rows: 4.4 PFLOP at 0.86 of 989.4e12.
    h100 = load_device("h100_sxm")
    chip = Chip(h100.peak_flops, h100.hbm_bandwidth, h100.n_sm)
    lane = GemmParams.from_lane(h100.lane("gemm"))
    reading, computing = (float(gemm_time(chip, lane, m, 16_384, 16_384).seconds) for m in (1, 8192))
    assert reading == pytest.approx(2.5e-6 + 536.9e6 / (0.89 * 3.35e12), rel=0.02)
    assert computing == pytest.approx(4.398e12 / (0.86 * 989.4e12), rel=0.05)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("model", ["llama-3.1-8b", "qwen3-14b", "llama-2-7b"])
def test_a_larger_decode_batch_takes_longer_in_all_and_less_a_token(device: str, model: str) -> None:
    steps, context = step_model(device, model), 1024
    batches = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
    times = [steps.step_ns(batch, batch * context, context, (), batch) for batch in batches]
    for smaller, larger in pairwise(times):
        assert smaller <= larger <= 2 * smaller


def test_eight_sequences_share_one_reading_of_the_weights_on_h100() -> None:
    # 15.0 GB of weights are read once a step whatever the batch: 8 sequences cost 1.06 of one, not 8.
    steps = step_model("h100_sxm", "llama-3.1-8b")
    one, eight = (steps.step_ns(batch, batch * 1024, 1024, (), batch) for batch in (1, 8))
    assert eight / one < 1.15


def whatif(**changes: object) -> DeviceProfile:
    return load_device({"base": "h100_sxm", **changes})


def test_doubling_bandwidth_helps_decoding_and_doubling_the_peak_helps_prefill() -> None:
    engine, model = load_engine("vllm-0.24"), load_model("llama-3.1-8b")
    plain, wide, fast = (
        StepModel(device, engine, model)
        for device in (
            load_device("h100_sxm"),
            whatif(hbm_bandwidth="x2"),
            whatif(**{"peak_flops.bf16": "x2"}),
        )
    )
    decode, prefill = (1, 1024, 1024, (), 1), (0, 0, 0, [(8192, 0)], 1)
    # Of 6.4 ms, 15.0 GB / (0.89 x 3.35e12 B/s) = 5.0 ms read weights: half of it goes, the fixed times stay.
    saved = (plain.step_ns(*decode) - wide.step_ns(*decode)) / 1e9
    assert saved == pytest.approx(0.5 * 15.01e9 / (0.89 * 3.35e12), rel=0.08)
    assert plain.step_ns(*decode) / fast.step_ns(*decode) < 1.01
    assert plain.step_ns(*prefill) / fast.step_ns(*prefill) > 1.6
    assert plain.step_ns(*prefill) / wide.step_ns(*prefill) < 1.15
