"""Low precision on devices as they are: what has no matrix units, what was never measured, what is gained and lost."""

from __future__ import annotations

from functools import cache

import pytest
from membound.hwmodels.device import load_device
from membound.hwmodels.engine import load_engine
from membound.hwmodels.lowering import Parallelism
from membound.hwmodels.model import load_model
from membound.hwmodels.precision import Quantization
from membound.hwmodels.stepmodel import StepModel
from membound.hwmodels.unmeasured import unmeasured


@cache
def step_model(device: str, weights: str, model: str = "llama-3.1-8b", tp: int = 1) -> StepModel:
    quantization = Quantization(weights=weights)
    return StepModel(
        load_device(device), load_engine("vllm-0.24"), load_model(model), Parallelism(tp), quantization
    )


def notes(device: str, weights: str, model: str = "llama-3.1-8b") -> tuple[str, ...]:
    return unmeasured(load_device(device), "vllm", step_model(device, weights, model).plan)


@pytest.mark.parametrize(
    ("device", "asked", "runs_as"),
    [
        ("a100_sxm_80gb", "fp8", "w8a16"),
        ("h100_sxm", "nvfp4", "w4a16"),
        ("h100_sxm", "fp8", "fp8"),
        ("b200_sxm", "nvfp4", "nvfp4"),
        ("a100_sxm_80gb", "int8", "int8"),
    ],
)
def test_a_format_without_matrix_units_is_multiplied_in_16_bit(device: str, asked: str, runs_as: str) -> None:
    """Marlin kernels in vLLM: fp8 weights before Ada, fp4 before Blackwell."""
    found = step_model(device, asked).plan.layers[0].linears[0].precision
    assert found.name == runs_as
    assert (found.asked != "") == (asked != runs_as)
    assert found.weight_bytes == pytest.approx(0.5625 if asked == "nvfp4" else 1.0)


def test_whoever_reads_the_result_is_told_what_was_never_measured() -> None:
    assert notes("h100_sxm", "fp8") == ()
    assert notes("a100_sxm_80gb", "w4a16") == ()
    (derived,) = notes("h100_sxm", "w4a16")
    assert "w4a16 are an unvalidated lever" in derived
    stand_in = notes("h100_sxm", "nvfp4")
    assert any("no fp4 matrix units" in line for line in stand_in)
    assert any("experts in" in line for line in notes("a100_sxm_80gb", "fp8", "mixtral-8x7b"))


@pytest.mark.parametrize("weights", ["w8a16", "w4a16"])
def test_weight_only_formats_win_at_batch_1_and_lose_at_a_large_batch(weights: str) -> None:
    """The weights are read narrow and multiplied wide, at less than the rate of plain ones."""
    plain, narrow = step_model("a100_sxm_80gb", "bf16"), step_model("a100_sxm_80gb", weights)
    assert narrow.step_ns(1, 1000, 1000, (), 1) < 0.9 * plain.step_ns(1, 1000, 1000, (), 1)
    chunk = [(8192, 0)]
    assert narrow.step_ns(0, 0, 0, chunk, 1) > plain.step_ns(0, 0, 0, chunk, 1)


def test_formats_multiplied_narrow_win_at_both_ends() -> None:
    plain, narrow = step_model("h100_sxm", "bf16"), step_model("h100_sxm", "fp8")
    assert narrow.step_ns(1, 1000, 1000, (), 1) < 0.75 * plain.step_ns(1, 1000, 1000, (), 1)
    chunk = [(8192, 0)]
    assert narrow.step_ns(0, 0, 0, chunk, 1) < 0.75 * plain.step_ns(0, 0, 0, chunk, 1)


def test_with_high_tensor_parallelism_the_quantise_pass_eats_the_gain() -> None:
    """A pass of microseconds a matrix does not shrink with the matrix (moe-mla-lowp.md, section 4)."""

    def gain(tp: int) -> float:
        plain, narrow = (step_model("h100_sxm", weights, tp=tp) for weights in ("bf16", "fp8"))
        return plain.step_ns(1, 1000, 1000, (), 1) / narrow.step_ns(1, 1000, 1000, (), 1)

    assert gain(8) < gain(1)
