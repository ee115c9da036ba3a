"""Judging kernel times: laws on tables whose truth is known, and that nothing judged ever reaches a fit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from membound.benchmarks import kernel_accuracy, kernel_lanes
from membound.benchmarks.baselines import BASELINES, Grid, roofline_us, three_parameters
from membound.benchmarks.kernel_lanes import NO_BAR, Dense, Line, public_lines
from membound.calibrate import accuracy, fitting
from membound.calibrate.accuracy import Judged, judge, lanes_of, left_out, matched, speed_up_errors
from membound.calibrate.fit.gemm import predict_gemm_us
from membound.calibrate.fit.linear import predict_linear_us
from membound.calibrate.fitting import Job
from membound.calibrate.publiclanes import PublicLane
from membound.calibrate.splits import part
from membound.calibrate.table import KernelTable, concat, write_table
from membound.calibrate.uncertainty import Predictive
from membound.hwmodels.device import load_device
from membound.hwmodels.steptypes import chip_of

H100, B200 = (chip_of(load_device(name)) for name in ("h100_sxm", "b200_sxm"))
TRUTH = {
    "t0_us": 3.0, "ec": 0.8, "eb": 0.85, "q": 3.1, "k0": 180.0, "ts_us": 2.4, "fd": 0.9, "ws": 0.15,
    "sat": 1.6, "oe": 0.08, "cs": 0.5, "wq": 0.1,
}  # fmt: skip
LINEAR = {**TRUTH, "l2f": 0.3, "l2b": 1.5, "tqz_us": 2.0, "eqz": 0.4}
SIZES = (1024, 2560, 4096, 6144, 8192, 10240)
PLAIN = "gemm/vllm"


def gemm(dtype: str = "bfloat16", **times: Any) -> KernelTable:
    """Return GEMM shapes of all parts of the frozen splits on a full grid."""
    m, n, k = (each.ravel() for each in np.meshgrid([1, 8, 64, 512, 2048, 4096], SIZES, SIZES))
    names = {"op": "gemm", "framework": "vllm", "dtype": dtype, "kernel_source": "linear"}
    words = {name: [word] * len(m) for name, word in names.items()}
    return KernelTable.of({**words, "m": m, "n": n, "k": k, "latency_us": np.ones(len(m)), **times})


def timed(times: Any, table: KernelTable) -> KernelTable:
    return KernelTable.of({**table.columns, "latency_us": times})


def by_form(noise: float = 0.0) -> KernelTable:
    """Return a table whose times come from the form itself, with noise in log(time) if asked for."""
    factor = np.exp(np.random.default_rng(1).normal(0.0, noise, len(gemm())))
    return timed(predict_gemm_us(H100, TRUTH, gemm()) * factor, gemm())


@pytest.fixture(scope="module")
def lines() -> list[Line]:
    return list(Dense.of("h100_sxm", by_form()).lines())


def test_where_the_form_is_the_truth_it_errs_by_nothing_and_every_baseline_by_more(lines: list[Line]) -> None:
    held_out = [line for line in lines if line.judged.part != "train"]
    assert [line.judged.part for line in held_out] == ["unseen", "beyond"]
    for line in held_out:
        assert line.judged.errors["mape"] < 0.005 < 0.02 < min(line.baselines.values())


def test_the_parts_hold_every_row_once_and_none_of_them_without_a_prediction(lines: list[Line]) -> None:
    assert sum(line.judged.n for line in lines) == len(gemm())
    assert all(np.isfinite(list(line.judged.errors.values())).all() for line in lines)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[KernelTable]:
    """Collect the rows that any fit, of a form or of a baseline, is handed."""
    rows: list[KernelTable] = []

    def spy(of: Any, at: Any) -> Any:
        def told(*args: Any, **options: Any) -> Any:
            rows.append(at(args))
            return of(*args, **options)

        return told

    def job_rows(args: tuple[Job]) -> KernelTable:
        return args[0].rows

    for family, fitter in fitting.FITTERS.items():
        monkeypatch.setitem(fitting.FITTERS, family, spy(fitter, job_rows))
    for name, made in BASELINES.items():
        monkeypatch.setitem(BASELINES, name, spy(made, lambda args: args[0]))
    monkeypatch.setattr(PublicLane, "fit", spy(PublicLane.fit, lambda args: args[1]))
    return rows


def test_no_fit_and_no_baseline_is_handed_a_judged_row(seen: list[KernelTable]) -> None:
    assert [line.gpu for line in Dense.of("h100_sxm", by_form()).lines()] == ["h100_sxm"] * 3
    assert len(seen) == 1 + len(BASELINES)
    fp8 = gemm("fp8")
    lane = PublicLane("h100_sxm", "vllm", "gemm", "fp8", "linear_fp8", "vllm", facts={"evaluations": 3})
    assert len(list(public_lines(lane, timed(predict_linear_us(H100, LINEAR, fp8), fp8)))) == 3
    assert len(seen) == 2 + len(BASELINES)
    for rows in seen:
        assert len(rows) > 0
        assert part(rows)["train"].all()


def test_what_is_left_out_is_predicted_once_from_all_the_rest() -> None:
    table, calls = gemm(), list[tuple[set[int], set[int]]]()

    def predict(rest: KernelTable, out: KernelTable) -> Predictive:
        calls.append((set(rest["n"].tolist()), set(out["n"].tolist())))
        return Predictive(out.latency_us * 2.0, np.ones(len(out)), np.zeros(len(out)))

    held, found = left_out(table, table["n"], predict)
    assert sorted(calls, key=lambda call: min(call[1])) == [(set(SIZES) - {n}, {n}) for n in SIZES]
    assert len(held) == len(table)
    assert judge("left out", held, found).errors["mape"] == 1.0
    assert judge("one", held, found, held["m"] == 1).n == len(SIZES) ** 2


def test_interpolation_gives_its_nodes_back() -> None:
    table = by_form()
    assert np.allclose(Grid.of(table, H100).predict_us(table), table.latency_us, rtol=1e-9)


def test_interpolation_follows_a_power_law_between_and_outside_its_nodes() -> None:
    def law(rows: KernelTable) -> Any:
        m, n, k = rows.numbers("m", "n", "k")
        return 3.0 * m**0.7 * n**0.4 * k**0.2

    nodes = timed(law(gemm()), gemm())
    beyond = KernelTable.of({**gemm().columns, "m": gemm()["m"] * 3, "n": gemm()["n"] * 5})
    assert np.allclose(Grid.of(nodes, H100).predict_us(beyond), law(beyond), rtol=1e-9)


def test_three_parameters_find_a_table_of_three_parameters() -> None:
    plain = replace(H100, roofline3=True)
    table = timed(predict_gemm_us(plain, {"t0_us": 4.0, "ec": 0.7, "eb": 0.8, "qr": 1.0}, gemm()), gemm())
    assert np.allclose(three_parameters(table, H100)(gemm()), table.latency_us, rtol=1e-2)


def test_no_time_of_the_form_is_below_the_roofline_of_what_it_is_charged() -> None:
    assert (by_form().latency_us > roofline_us(H100, gemm())).mean() > 0.95


def test_a_swap_of_a_datasheet_for_itself_predicts_a_speed_up_of_one() -> None:
    table = by_form()
    n, found = speed_up_errors(
        (H100, table), (H100, table), lambda chip, rows: predict_gemm_us(chip, TRUTH, rows)
    )
    assert n == len(table)
    assert found["mape"] == 0.0
    slower = timed(2.0 * table.latency_us, table)
    _, found = speed_up_errors(
        (H100, slower), (H100, table), lambda chip, rows: predict_gemm_us(chip, TRUTH, rows)
    )
    assert found["bias"] == pytest.approx(-0.5)


def test_where_the_form_is_the_truth_on_both_the_speed_up_is_exact() -> None:
    def form(chip: Any, rows: KernelTable) -> Any:
        return predict_gemm_us(chip, TRUTH, rows)

    before, after = (timed(form(chip, gemm()), gemm()) for chip in (H100, B200))
    _, found = speed_up_errors((H100, before), (B200, after), form)
    assert found["mape"] < 1e-12
    _, same = speed_up_errors((H100, before), (B200, after), lambda chip, rows: np.ones(len(rows)))
    assert same["mape"] > 0.2


def test_rows_are_matched_by_their_shape_whatever_their_order() -> None:
    table = by_form()
    shuffled = table.take(np.random.default_rng(0).permutation(len(table)))
    one, other = matched(table.where(table["n"] > 2560), concat([shuffled, shuffled]), ("m", "n", "k"))
    assert len(one) == len(other) == int((table["n"] > 2560).sum())
    assert (one.latency_us == other.latency_us).all()


def test_rows_know_their_lane_and_unknown_operations_have_none() -> None:
    other = KernelTable.of({"op": ["nccl_all_gather"], "framework": ["vllm"], "latency_us": [1.0]})
    assert set(lanes_of(gemm())) == {PLAIN}
    assert lanes_of(concat([gemm("fp8"), other])).tolist()[-2:] == ["linear_fp8/vllm", ""]


def test_a_bar_is_missed_by_errors_coverage_width_and_by_rows_without_a_prediction() -> None:
    fine = {"mape": 0.05, "median_ape": 0.04, "p90_ape": 0.1, "bias": 0.0}
    covered = {"coverage_90": 0.9, "coverage_90_outside": 0.9, "median_half_width": 0.10}
    good = Judged("unseen", 200, 100, fine, covered)
    assert good.misses((5.0, 4.0, 10.0)) == []
    assert good.misses((4.0, 3.0, 9.0)) == ["mape", "median_ape", "p90_ape", "width"]
    for name, value, told in (
        ("coverage_90", 0.96, "in range"), ("coverage_90", 0.84, "in range"),
        ("coverage_90_outside", 0.79, "outside"), ("median_half_width", 0.11, "width"),
    ):  # fmt: skip
        assert replace(good, covered={**covered, name: value}).misses((5.0, None, None)) == [told]
    assert replace(good, errors=dict.fromkeys(fine, float("nan"))).misses((5.0, None, None)) == ["mape"]
    assert replace(good, errors=dict.fromkeys(fine, 9.0)).misses(NO_BAR) == []


def test_the_command_fails_where_a_bar_is_missed_and_only_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_table(by_form(noise=0.03), tmp_path / "kernels_aic_h100_sxm.parquet")
    command = [str(tmp_path), "--gpu", "h100_sxm", "--family", "dense", "--no-baselines"]
    monkeypatch.setattr(accuracy, "FEWEST_COVERED", 1000)  # of 45 rows, 95 % inside may as well be 98
    monkeypatch.setitem(kernel_lanes.BARS, PLAIN, {"h100_sxm": {"unseen": (5.0, None, None)}})
    kernel_accuracy.main(command)
    assert "\n0 of 1 bars missed" in capsys.readouterr().out
    monkeypatch.setitem(kernel_lanes.BARS, PLAIN, {"h100_sxm": {"unseen": (1e-9, None, None)}})
    with pytest.raises(SystemExit) as stopped:
        kernel_accuracy.main(command)
    assert stopped.value.code == 1
    told = capsys.readouterr().out
    assert "MISSED: mape" in told
    assert "\n1 of 1 bars missed, 1 of them by errors" in told
    kernel_accuracy.main([*command, "--no-check", "--format", "json"])
    shown = json.loads(capsys.readouterr().out)
    assert [line["missed"][:1] for line in shown] == [[], ["mape"], []]
    kernel_accuracy.main([*command, "--no-check", "--format", "json", "--jobs", "2"])
    assert [line["judged"] for line in json.loads(capsys.readouterr().out)] == [
        line["judged"] for line in shown
    ]
