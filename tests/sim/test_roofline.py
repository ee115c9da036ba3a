"""The roofline report counts what a run is charged, and its curve is the step model's own."""

from __future__ import annotations

import json

import membound as mb
import numpy as np
import pytest
from membound.app.cli import main
from membound.hwmodels.kernelcall import StepBatch, lower_step
from membound.sim.run import simulate, size_pool, step_model
from membound.sim.scenario.resolve import resolve
from membound.sim.studies.batchcurve import LARGEST, decode_points
from membound.sim.studies.roofline import ridge_points, roofline
from membound.sim.studies.study import StudyError


def scenario(**changes):
    load = {
        "arrivals": {"kind": "poisson", "rate_per_s": 12},
        "input_tokens": {"kind": "lognormal", "p50": 500, "sigma": 0.8, "max": 4000},
        "output_tokens": {"kind": "lognormal", "p50": 60, "sigma": 0.6, "max": 300},
        "requests": 60,
    }
    asked = {
        "device": "h100_sxm",
        "model": "llama-3.1-8b",
        "workload": load,
        "kv_cache": {"max_model_len": 8192},
    }
    return mb.Scenario.model_validate(asked | changes)


CASES = {
    "dense": {},
    "two ranks, fp8": {
        "parallelism": {"tensor_parallel_size": 2},
        "quantization": {"weights": "fp8", "kv_cache": "fp8"},
    },
    "experts": {"model": "qwen3-30b-a3b"},
    "windows": {"model": "gemma-3-4b"},
    "what-if": {"device": {"base": "h100_sxm", "hbm_bandwidth": "x1.5"}},
}


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_operating_points_add_up_to_what_the_run_is_charged(changes):
    asked = scenario(**changes)
    found, summary = roofline(asked), simulate(asked).summary()
    points = {point.kind: point for point in found.points}
    whole = points["all"]
    assert whole.mfu == pytest.approx(summary["utilization"]["mfu"], rel=1e-6)
    assert whole.mbu == pytest.approx(summary["utilization"]["mbu"], rel=1e-6)
    assert whole.steps == summary["simulation"]["steps"]
    assert found.level == summary["confidence"]["level"]
    kinds = [points[kind] for kind in ("prefill", "decode", "mixed") if kind in points]
    for name in ("seconds", "flop", "hbm_bytes", "tokens"):
        total = sum(point.steps * getattr(point, name) for point in kinds)
        assert total == pytest.approx(whole.steps * getattr(whole, name), rel=1e-9)
    assert sum(point.busy_share for point in kinds) == pytest.approx(1)


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_no_step_is_faster_than_the_roofline(changes):
    for point in roofline(scenario(**changes)).points:
        assert 0 < point.of_roofline <= 1
        assert max(point.attainable_mfu, point.attainable_mbu) == 1
        assert point.mfu <= point.attainable_mfu
        assert point.mbu <= point.attainable_mbu


def test_ridge_points_are_peaks_over_bandwidths():
    ridges = {(each.dtype, each.tier): each.intensity for each in ridge_points(mb.load_device("h100_sxm"))}
    assert ridges["bf16", "hbm"] == pytest.approx(989.4e12 / 3.35e12)
    assert ridges["fp8", "link"] == pytest.approx(1978.9e12 / 450e9)
    assert ridges["bf16", "host"] > ridges["bf16", "link"] > ridges["bf16", "hbm"]


def test_decode_points_are_the_steps_that_a_run_takes():
    asked = scenario()
    model = step_model(resolve(asked, "size"))
    for point in decode_points(model, [1, 7, 64, 300], 1000, 100):
        batch = point.batch
        assert point.tpot_s == model.step_ns(batch, batch * 1000, 1000, [], batch) / 1e9
        assert point.tokens_per_s == pytest.approx(batch / point.tpot_s)
        assert point.fits == (batch <= 100)
        keys = model.plan.kv_bytes_per_token
        assert point.kv_bytes_per_token == pytest.approx(1001 * keys)
        assert point.bytes_per_token == pytest.approx(1001 * keys + model.plan.weight_bytes / batch)


def test_the_curve_ends_where_the_pool_ends():
    asked = scenario()
    curve, pool = roofline(asked).curve, size_pool(resolve(asked))
    blocks = -(-curve.context_tokens // 16)
    assert curve.kv_batch * blocks <= pool.usable_blocks < (curve.kv_batch + 1) * blocks
    assert {curve.kv_batch} <= {point.batch for point in curve.points}
    assert [point.fits for point in curve.points] == [p.batch <= curve.kv_batch for p in curve.points]


def test_short_contexts_cross_the_ridge_and_long_ones_never_do():
    short = scenario()
    short = short.replace(workload__input_tokens=64, workload__output_tokens=16)
    ridge = 989.4e12 / 3.35e12
    curve = roofline(short).curve
    assert curve.ridge_batch is not None
    model = step_model(resolve(short, "size"))
    before, at = decode_points(model, [curve.ridge_batch - 1, curve.ridge_batch], curve.context_tokens, 1)
    assert before.intensity < ridge <= at.intensity
    long = roofline(scenario()).curve
    assert long.ridge_batch is None
    assert long.limit_intensity < ridge
    edge = long.ridge_context
    assert edge is not None
    assert decode_points(model, [LARGEST], edge, 1)[0].intensity >= ridge
    assert decode_points(model, [LARGEST], edge + 1, 1)[0].intensity < ridge


def test_training_is_three_forward_passes_and_sixteen_bytes_a_parameter():
    found = roofline(scenario())
    step = next(point for point in found.points if point.kind == "training")
    parameters = (
        8_030_261_248 - 128_256 * 4096
    )  # as published, less the input table, which nothing multiplies
    assert found.training_bytes == pytest.approx(16 * parameters, rel=0.001)
    assert step.hbm_bytes == pytest.approx(34 * parameters, rel=0.001)
    attention = 3 * 32 * 2 * 32 * 256 * 2 * 4096 * 4097 / 2
    assert step.flop == pytest.approx(6 * parameters * 8192 + attention, rel=0.001)
    assert (step.level, step.bound) == ("unvalidated", "compute")


def test_bytes_over_the_link_are_those_of_the_kernels():
    model = step_model(resolve(scenario(parallelism={"tensor_parallel_size": 4}), "size"))
    calls = lower_step(model.plan, StepBatch(n_decode=5, context_sum=500, longest=100, sampled=5))
    sent = sum(call.count * call.cost.link_bytes for call in calls)
    assert 5 * model.plan.link_bytes_per_token == pytest.approx(sent)
    assert sent > 0


def test_steps_of_several_models_and_a_missing_load_are_refused_in_a_line():
    drafting = {"method": "ngram", "num_speculative_tokens": 2, "acceptance": 0.5}
    with pytest.raises(StudyError, match="speculative"):
        roofline(scenario(speculative=drafting))
    with pytest.raises(StudyError, match="pipeline_parallel_size"):
        roofline(scenario(parallelism={"pipeline_parallel_size": 2}))
    with pytest.raises(StudyError, match=r"pipeline_parallel_size.*allowed: 1"):
        roofline(scenario(parallelism={"pipeline_parallel_size": 2}))
    with pytest.raises(StudyError, match="workload: missing"):
        roofline(scenario(workload=None))


def test_the_command_writes_table_json_and_csv(tmp_path, capsys):
    path = tmp_path / "chat.yaml"
    path.write_text(scenario(device={"base": "h100_sxm", "hbm_bandwidth": "x1.5"}).to_yaml())
    said = {}
    for form in ("table", "json", "csv"):
        assert main(["explain", str(path), "--roofline", "--requests", "20", "--format", form]) == 0
        said[form] = capsys.readouterr().out
    found = json.loads(said["json"])
    assert found["requests"] == 20
    assert found["whatif"] == {"hbm_bandwidth": "x1.5"}
    assert "h100_sxm with hbm_bandwidth x1.5" in said["table"]
    assert "what-if: no such device was measured" in " ".join(said["table"].split())
    rows = said["csv"].splitlines()
    assert {row.partition(",")[0] for row in rows} == {"table", "ridge", "point", "batch"}
    assert len(rows) == 1 + sum(len(found[name]) for name in ("ridges", "points")) + len(
        found["curve"]["points"]
    )
    assert np.isfinite([point["tpot_s"] for point in found["curve"]["points"]]).all()
