"""What measuring promises: nothing twice, nothing lost, nothing fitted that was held out; and it works on this CPU."""

from __future__ import annotations

import importlib.util
import json
import math
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from membound.calibrate import measure as measuring
from membound.calibrate.errors import CalibrationError
from membound.calibrate.machine import Lane, machine_of
from membound.calibrate.measure import drift, measure, read_run
from membound.calibrate.runfolder import (
    ENVIRONMENT,
    POINTS,
    TABLE,
    append,
    mend,
    read_records,
    with_seen_rates,
)
from membound.calibrate.stopping import checks_due, held_out_errors, settled_lanes
from membound.calibrate.table import read_table
from membound.hwmodels.errors import MemboundError
from membound.kernels.cost import cost_of
from membound.kernels.errors import KernelError
from membound.kernels.results import DeviceFacts, Measured, Overlap, Timing
from membound.kernels.shape import KernelShape

MACHINE = replace(machine_of("cpu"), bandwidth=4e10)


class Stage:
    """A device that answers at once, with the times of a rate and a bandwidth."""

    def __init__(
        self, device: str = "cpu", refuse: str = "", wrong: str = "", stop_after: float = math.inf
    ) -> None:
        self.device, self.refuse, self.wrong, self.left = device, refuse, wrong, stop_after
        self.asked: list[KernelShape] = []

    def facts(self) -> DeviceFacts:
        return DeviceFacts(self.device, "a stage", "cpu", 1, 32 << 20, 16 << 30)

    def lanes(self) -> tuple[list[Lane], dict[str, str]]:
        return list(MACHINE.lanes), {"gemm/torch_scaled_mm/fp8": "no fp8 on a stage"}

    def environment(self) -> dict[str, object]:
        return {"packages": {"torch": "2.13.0"}, "threads": 1}

    def state(self) -> dict[str, float]:
        return {"power_w": 250.0}

    def close(self) -> None:
        return

    def overlap(self) -> Overlap:
        return Overlap(1.0, 1.0, 2.0, 1e9, 1e9)

    def measure(self, shape: KernelShape, budget_s: float) -> Measured:
        self.asked.append(shape)
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        if shape.op == self.refuse:
            raise RuntimeError("out of memory\nand more lines")
        cost = cost_of(shape)
        seconds = MACHINE.rough_seconds(shape.op, shape.dtype, cost)
        timing = None if shape.op == self.wrong else Timing(seconds, 0.01, 10, 1, "thread")
        return Measured(timing, 0.5 if timing is None else 1e-3, 1e-2, cost.flop, cost.hbm_bytes)

    def measure_together(self, shapes: Sequence[KernelShape], budget_s: float) -> list[Measured]:
        return [self.measure(shape, budget_s) for shape in shapes]


def quiet(line: str) -> None:
    return


def run(folder: Path, stage: Stage, budget_s: float = 20.0, say=quiet):
    return measure("cpu", budget_s, folder, say=say, backend=stage)


def test_every_point_of_the_plan_is_timed_once_and_written_in_the_long_schema(tmp_path: Path):
    summary = run(tmp_path, Stage())
    assert summary.timed == summary.planned == summary.new
    found = read_run(tmp_path)
    assert len(found.fit) + len(found.held_out) + len(found.repeats) == summary.timed
    table = read_table(tmp_path / TABLE)
    assert len(table) == summary.timed
    assert set(table["gpu"]) == {"cpu"}
    assert set(table["framework"]) == {"torch"}
    gemm = table.only(op="gemm", kernel_source="torch_mm", dtype="bfloat16")
    m, n, k = gemm.numbers("m", "n", "k")
    assert (2e6 * m * n * k / 1e10 < gemm.latency_us).all()
    assert (table.only(op="rmsnorm")["bytes"] > 0).all()
    assert (table["power_w"] == 250.0).all()
    assert found.environment["packages"] == {"torch": "2.13.0"}
    assert found.overlap == Overlap(1.0, 1.0, 2.0, 1e9, 1e9)


def test_held_out_points_are_in_no_fit(tmp_path: Path):
    run(tmp_path, Stage())
    found = read_run(tmp_path)
    roles = {record["id"].partition("#")[0]: record["role"] for record in found.records if "id" in record}
    assert sum(role == "held_out" for role in roles.values()) == len(found.held_out)

    def shapes(table) -> set[tuple]:
        names = (
            "op",
            "kernel_source",
            "dtype",
            "m",
            "n",
            "k",
            "batch",
            "q_len",
            "kv_len",
            "n_heads",
            "n_kv_heads",
        )
        more = ("head_dim", "bytes", "num_tokens", "hidden", "inter", "n_experts")
        return set(zip(*(table[name].tolist() for name in (*names, *more)), strict=True))

    assert not shapes(found.held_out) & shapes(found.fit)
    assert shapes(found.repeats) <= shapes(found.fit)


def test_an_interrupted_run_goes_on_and_times_nothing_twice(tmp_path: Path):
    first = Stage(stop_after=40)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, first)
    kept = read_records(tmp_path)
    second = Stage()
    summary = run(tmp_path, second)
    records = read_records(tmp_path)
    assert records[: len(kept)] == kept
    ids = [record["id"] for record in records if "id" in record]
    assert len(ids) == len(set(ids)) == summary.planned
    assert summary.new == summary.planned - sum("id" in record for record in kept)
    third = run(tmp_path, Stage())
    assert (third.new, third.timed) == (0, summary.timed)


def test_a_line_cut_by_a_kill_is_dropped_and_its_point_timed_again(tmp_path: Path):
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, Stage(stop_after=20))
    with (tmp_path / POINTS).open("ab") as file:
        file.write(b'{"id": "gemm/torch_mm/bfloat16/m=1", "latency_')
    before = read_records(tmp_path)
    mend(tmp_path)
    append(tmp_path, {"id": "x"})
    assert read_records(tmp_path) == [*before, {"id": "x"}]
    assert run(tmp_path, Stage()).timed == len(read_run(tmp_path).fit) + sum(
        len(part) for part in (read_run(tmp_path).held_out, read_run(tmp_path).repeats)
    )


def test_what_a_device_refuses_or_gets_wrong_is_told_and_never_in_the_table(tmp_path: Path):
    summary = run(tmp_path, Stage(refuse="moe", wrong="swiglu"))
    table = read_table(tmp_path / TABLE)
    assert not {"moe", "swiglu"} & set(table["op"])
    assert set(summary.refused.values()) == {"out of memory"}
    assert set(summary.wrong.values()) == {"swiglu/torch_swiglu/bfloat16 is off by more than 0.01"}
    text = summary.describe()
    assert "refused: " in text
    assert "wrong output, not timed: " in text
    assert "skipped gemm/torch_scaled_mm/fp8: no fp8 on a stage" in text
    assert run(tmp_path, Stage(refuse="moe", wrong="swiglu")).new == 0


def test_a_spent_budget_ends_the_run_and_more_budget_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    clock = {"now": 0.0}
    stage = Stage()
    timed = stage.measure

    def slow(shape: KernelShape, budget_s: float) -> Measured:
        clock["now"] += 0.5
        return timed(shape, budget_s)

    stage.measure = slow  # type: ignore[method-assign]
    monkeypatch.setattr(measuring.time, "perf_counter", lambda: clock["now"])
    summary = run(tmp_path, stage, budget_s=20.0)
    assert 0 < summary.timed < summary.planned
    assert summary.seconds <= 21.0
    assert run(tmp_path, stage, budget_s=1000.0).timed == summary.planned


def slowly(stage: Stage, monkeypatch: pytest.MonkeyPatch, seconds: float = 0.1) -> Stage:
    """Let every timing take as long on the clock that a run reads, and a fit nothing."""
    clock = {"now": 0.0}
    timed = stage.measure

    def slow(shape: KernelShape, budget_s: float) -> Measured:
        clock["now"] += seconds
        return timed(shape, budget_s)

    stage.measure = slow  # type: ignore[method-assign]
    monkeypatch.setattr(measuring.time, "perf_counter", lambda: clock["now"])
    return stage


def test_a_lane_that_gets_no_better_stops_and_leaves_its_time_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    gemm, decode = "gemm/torch_mm/bfloat16", "attn_decode/torch_paged/bfloat16"
    timed: dict[bool, Counter[str]] = {}
    for full in (True, False):
        folder = tmp_path / str(full)
        summary = measure("cpu", 20.0, folder, full=full, say=quiet, backend=slowly(Stage(), monkeypatch))
        ids = [record["id"] for record in read_records(folder) if "latency_us" in record]
        timed[full] = Counter("/".join(each.split("/")[:3]) for each in ids)
        assert summary.seconds < 20.1
        assert (gemm in summary.stopped) is not full
        assert ("no longer falling" in summary.describe()) is not full
    assert timed[False][gemm] < timed[True][gemm]
    assert sum(timed[False].values()) < sum(timed[True].values())  # the plan has no more for the others
    others = set(timed[True]) - {gemm, decode}
    assert sum(timed[False][lane] for lane in others) > sum(timed[True][lane] for lane in others)
    again = measure("cpu", 20.0, tmp_path / "False", say=quiet, backend=slowly(Stage(), monkeypatch))
    assert gemm in again.stopped  # a run that goes on knows what it saw
    rest = measure("cpu", 1e3, tmp_path / "False", full=True, say=quiet, backend=Stage())
    assert (rest.timed, rest.stopped) == (rest.planned, {})


def test_every_lane_that_a_run_fits_is_looked_at(tmp_path: Path):
    """Prefill takes its bandwidth from the matrix product's lane: it can only be judged beside it."""
    run(tmp_path, Stage(), budget_s=60.0)
    lanes = ("gemm/torch_mm/bfloat16", "attn_decode/torch_paged/bfloat16", "attn_prefill/torch_sdpa/bfloat16")
    found = held_out_errors(tmp_path, (*lanes, "decoder_step/torch_eager/bfloat16"))
    assert set(found) == set(lanes)
    assert found["gemm/torch_mm/bfloat16"] < 0.1


def test_a_gpu_that_the_catalogue_lacks_is_timed_in_full(tmp_path: Path):
    run(tmp_path, Stage("rtx_9999"))
    environment = json.loads((tmp_path / ENVIRONMENT).read_text())
    environment["machine"]["kind"] = "cuda"
    (tmp_path / ENVIRONMENT).write_text(json.dumps(environment))
    assert held_out_errors(tmp_path, ("gemm/torch_mm/bfloat16",)) == {}


def test_checks_take_a_twentieth_of_the_budget_at_most():
    check = {"check": {}, "wall_s": 0.6}
    assert checks_due([], 8.0, 20.0)
    assert not checks_due([check], 12.0, 20.0)  # another would make 1.2 s of 20
    assert checks_due([{**check, "wall_s": 0.3}], 12.0, 20.0)
    assert settled_lanes(
        [{"check": {"a": error, "b": 0.1 - 0.01 * i}} for i, error in enumerate((0.1, 0.1, 0.1))]
    ) == {"a": 0.1}


def test_progress_says_how_much_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(measuring, "_SAY_EVERY_S", 0.0)
    said: list[str] = []
    summary = run(tmp_path, Stage(), say=said.append)
    assert len(said) == summary.planned
    assert said[0].startswith(f"1 of {summary.planned} timings, ")
    assert "about" in said[0]
    assert "left" in said[0]


def test_repeats_show_drift(tmp_path: Path):
    run(tmp_path, Stage())
    records = [dict(record) for record in read_records(tmp_path)]
    assert drift(records) == pytest.approx(0.0)
    for record in records:
        if record.get("role") == "repeat":
            record["latency_us"] *= 0.8
    assert drift(records) == pytest.approx(0.25)
    assert math.isnan(drift([]))


def test_a_folder_of_another_device_and_a_folder_of_no_run_are_refused_in_one_line(tmp_path: Path):
    run(tmp_path, Stage())
    with pytest.raises(CalibrationError, match="holds a run on cpu, not on l40s; give another folder"):
        run(tmp_path, Stage("l40s"))
    with pytest.raises(CalibrationError, match=f"is no measuring run: it has no {POINTS}"):
        read_run(tmp_path / "nowhere")
    with pytest.raises(CalibrationError, match="budget is 0 s; it must be more than 0"):
        measure("cpu", 0, tmp_path, backend=Stage())


def test_without_torch_the_message_names_the_command_that_installs_it(tmp_path: Path):
    script = (
        "import sys, importlib.util as u\n"
        "find = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'torch' else find(name, *rest)\n"
        "sys.modules['torch'] = None\n"
        "from membound.calibrate.measure import measure\n"
        "from membound.hwmodels.errors import MemboundError\n"
        "try: measure('cpu', 1.0, sys.argv[1])\n"
        "except MemboundError as error: print(error)"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.count("\n") == 1
    assert "pip install 'membound[calibrate]'" in done.stdout
    assert not (tmp_path / "out").exists()


def test_a_device_that_does_not_exist_is_refused_in_one_line(tmp_path: Path):
    pytest.importorskip("torch", reason="asks torch which devices there are")
    for device in ("cuda:97", "cqu", "h100_sxm"):
        with pytest.raises(
            KernelError, match=rf"unknown device '{device}' in this machine; .*allowed: .*cpu"
        ) as caught:
            measure(device, 1.0, tmp_path / "out")
        assert isinstance(caught.value, MemboundError)
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_the_cpu_is_timed_for_real_killed_and_gone_on_with(tmp_path: Path):
    pytest.importorskip("torch", reason="times real kernels")
    out = tmp_path / "run"
    script = "import sys; from membound.calibrate.measure import measure; measure('cpu', 6.0, sys.argv[1])"
    command = [sys.executable, "-c", script, str(out)]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for _ in range(600):
        if child.poll() is not None or sum("id" in record for record in read_records(out)) >= 3:
            break
        time.sleep(0.1)
    child.send_signal(signal.SIGKILL)
    child.wait()
    kept = read_records(out)
    assert sum("id" in record for record in kept) >= 3
    summary = measure("cpu", 6.0, out, say=quiet)
    records = read_records(out)
    ids = [record["id"] for record in records if "id" in record]
    assert records[: len(kept)] == kept
    assert len(ids) == len(set(ids))
    assert not summary.wrong
    assert not summary.refused
    run = read_run(out)
    assert (run.fit.latency_us > 0.0).all()
    environment = json.loads((out / "environment.json").read_text())
    assert environment["threads"] == 1
    assert environment["device"]["kind"] == "cpu"
    assert "torch" in environment["packages"]
    assert {record["clock"] for record in records if "clock" in record} == {"thread"}


def test_all_reduces_of_one_group_size_are_timed_together(tmp_path: Path):
    together: list[int] = []

    class Node(Stage):
        def facts(self) -> DeviceFacts:
            return replace(super().facts(), devices=4)

        def measure_together(self, shapes: Sequence[KernelShape], budget_s: float) -> list[Measured]:
            together.append(len(shapes))
            timing = Timing(1e-4, 0.01, 10, 1, "wall")
            return [Measured(timing, 0.0, 1e-2, 0.0, 2.0) for _ in shapes]

    run(tmp_path, Node())
    assert together == [20, 20]
    table = read_table(tmp_path / TABLE).only(op="allreduce")
    assert sorted(set(table["world_size"].tolist())) == [2, 4]
    assert (table["bytes"].min(), table["bytes"].max()) == (256, 1 << 30)
    assert run(tmp_path, Node()).new == 0


def test_the_machine_of_a_run_takes_its_rates_from_the_device(tmp_path: Path):
    run(tmp_path, Stage())
    plan = json.loads((tmp_path / "plan.json").read_text())
    rates = plan["machine"]["flop_rate"]
    assert rates["gemm"] == pytest.approx(MACHINE.flop_rate["gemm"], rel=0.5)
    assert replace(MACHINE, id="x").as_dict()["id"] == "x"


def test_nothing_that_a_cpu_run_timed_is_faster_than_the_rates_it_tells(tmp_path: Path):
    run(tmp_path, Stage())
    found = read_run(tmp_path)
    machine = found.environment["machine"]
    timed = [record for record in found.records if "latency_us" in record]
    bf16 = [record for record in timed if record["shape"]["dtype"] == "bfloat16"]
    fastest = max(record["flop"] / record["latency_us"] * 1e6 for record in bf16)
    assert machine["flop_rate"]["gemm"] == pytest.approx(fastest)
    large = [record for record in timed if record["moved_bytes"] > machine["cache_bytes"]]
    assert all(
        record["moved_bytes"] / record["latency_us"] * 1e6 <= machine["bandwidth"] * 1.001 for record in large
    )
    gpu = {"machine": {"kind": "cuda", "flop_rate": {"": 1.0}}}
    assert with_seen_rates(gpu, timed) == gpu


def test_the_gpu_benchmark_goes_its_whole_way_without_a_gpu(tmp_path: Path):
    path = Path(__file__).parents[2] / "benchmarks" / "gpu_calibration.py"
    spec = importlib.util.spec_from_file_location("gpu_calibration", path)
    assert spec is not None
    assert spec.loader is not None
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    lines = benchmark.calibrated("cpu", 30.0, tmp_path, backend=Stage())
    assert (tmp_path / "fit.json").is_file()
    (gemm,) = [line.split() for line in lines if line.startswith("gemm ") and " bfloat16 " in line]
    assert float(gemm[4]) < 10.0  # a stage keeps to the form that is fitted
    assert any("ms at once; shared fairly" in line for line in lines)
    assert benchmark.shared_seconds(Overlap(1.0, 1.0, 2.0, 1e9, 1e9)) == pytest.approx(2.0)
    assert benchmark.shared_seconds(Overlap(1.0, 1.0, 1.2, 2e9, 0.5e9)) == pytest.approx(1.25)
