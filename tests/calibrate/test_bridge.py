"""From torch to an engine: ratios of torch lanes carry the engine's, errors add, and what cannot be bridged is told."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from membound.app.cli import main
from membound.calibrate.bridge import bridge_device, bridge_lane
from membound.calibrate.errors import CalibrationError
from membound.calibrate.publish import device_text, write_lanes
from membound.hwmodels.device import DeviceProfile, load_device
from membound.hwmodels.lanes import FittedLane, FittedParameter
from membound.hwmodels.spreads import BRIDGED, residual_spread
from membound.hwmodels.uncertainty import added_spread

H100 = load_device("h100_sxm")
FAMILIES = ("gemm", "decode_attention", "prefill_attention")


def scaled(lane: FittedLane, **factors: float) -> FittedLane:
    parameters = {
        name: FittedParameter(value=each.value * factors.get(name, 1.0), stderr=0.05 * each.value)
        for name, each in lane.parameters.items()
    }
    return lane.model_copy(update={"parameters": parameters, "level": "measured", "source": "drawn"})


def reference() -> DeviceProfile:
    """Return the H100 as it would be if torch were timed on it too."""
    fitted = {
        family: {"vllm": H100.fitted[family]["vllm"], "torch": scaled(H100.fitted[family]["vllm"], t0_us=1.5)}
        for family in FAMILIES
    }
    return H100.model_copy(update={"fitted": fitted})


def new(**factors: float) -> DeviceProfile:
    """Return a device with torch lanes alone, its parameters the reference's by factors."""
    fitted = {
        family: {"torch": scaled(lanes["torch"], **factors)} for family, lanes in reference().fitted.items()
    }
    return H100.model_copy(update={"id": "new", "name": "New", "aliases": (), "fitted": fitted})


def values(lane: FittedLane) -> dict[str, float]:
    return {name: each.value for name, each in lane.parameters.items()}


def test_bridged_to_itself_a_device_has_the_engine_s_lane():
    found, told = bridge_device(new(), reference())
    for family in ("decode_attention", "prefill_attention"):
        made, engine = found.fitted[family]["vllm"], H100.fitted[family]["vllm"]
        assert made.level == "bridged"
        assert values(made) == pytest.approx(values(engine))
        assert made.hull == engine.hull
    assert {each.why for each in told} == {"by torch, 1:1", "by torch and h100_sxm"}


def test_a_parameter_that_torch_shows_twice_as_large_is_twice_as_large():
    made = bridge_device(new(t0_us=2.0), reference())[0].fitted["decode_attention"]["vllm"]
    engine = values(H100.fitted["decode_attention"]["vllm"])
    assert values(made) == pytest.approx({**engine, "t0_us": 2.0 * engine["t0_us"]})


def test_only_the_matrix_product_is_torch_s_own():
    found, _ = bridge_device(new(t0_us=2.0), reference())
    torch = new(t0_us=2.0).fitted["gemm"]["torch"]
    made = found.fitted["gemm"]["vllm"]
    assert (made.level, values(made), made.residual) == ("bridged", values(torch), torch.residual)


def test_errors_of_all_three_lanes_are_in_the_bridged_one():
    engine, torch = H100.fitted["decode_attention"]["vllm"], new().fitted["decode_attention"]["torch"]
    there = reference().fitted["decode_attention"]["torch"]
    made = bridge_lane("decode_attention", torch=torch, reference_torch=there, reference_engine=engine)
    for name in ("t0_us", "tb_us"):
        known = (engine, torch, there)
        relative = [each.parameters[name].stderr / each.parameters[name].value for each in known]
        assert made.parameters[name].stderr / made.parameters[name].value == pytest.approx(
            math.hypot(*relative)
        )
    spread = residual_spread("decode_attention", engine.level)
    stated = engine.residual or {name: spread.of(name) for name in ("memory", "compute", "latency")}
    assert made.residual.keys() == stated.keys()
    assert all(made.residual[name] > 1.2 * sd for name, sd in stated.items())


def test_an_interval_of_a_bridged_lane_holds_the_spread_of_bridges():
    lane = bridge_device(new(), reference())[0].lane("decode_attention", "vllm")
    assert lane.level == "bridged"
    assert added_spread(new(), lane).memory >= BRIDGED.memory


def untold(device: DeviceProfile, other: DeviceProfile) -> dict[str, str]:
    return {each.family: each.why for each in bridge_device(device, other)[1] if each.made is None}


def test_what_cannot_be_bridged_is_told_with_the_reason():
    device, other = new(), reference()
    engine = other.fitted["prefill_attention"]["vllm"]
    lacking = other.model_copy(update={"fitted": {**other.fitted, "prefill_attention": {"vllm": engine}}})
    assert untold(device, lacking) == {"prefill_attention": "h100_sxm has no torch lane of it"}
    bare = device.model_copy(update={"fitted": {"gemm": device.fitted["gemm"]}})
    assert untold(bare, other)["decode_attention"] == "new has no torch lane of it"
    odd = FittedLane(level="measured", source="", parameters={"zz": FittedParameter(value=1.0, stderr=0.0)})
    with pytest.raises(
        CalibrationError, match="the torch lanes share no parameter with the engine's; torch has zz"
    ):
        bridge_lane("prefill_attention", torch=odd, reference_torch=odd, reference_engine=engine)


def test_a_lane_of_our_own_kernel_stands_for_the_engine_s_of_the_same_heads():
    device, other = new(), reference()
    ours = device.fitted["decode_attention"]["torch"]
    for each in (device, other):
        each.fitted["decode_attention"]["torch_triton_paged"] = ours
    (told,) = [each for each in bridge_device(device, other)[1] if each.family == "decode_attention"]
    assert told.why == "by torch_triton_paged and h100_sxm"


def written(device: DeviceProfile, path: Path) -> Path:
    path.write_text(device_text(device))
    write_lanes(path, [(f, n, lane) for f, lanes in device.fitted.items() for n, lane in lanes.items()], path)
    return path


def test_the_command_writes_a_device_that_simulates(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    here, there = written(new(), tmp_path / "new.yaml"), written(reference(), tmp_path / "ref.yaml")
    to = tmp_path / "bridged.yaml"
    assert (
        main(["calibrate", "bridge", "--device", str(here), "--reference", str(there), "--to", str(to)]) == 0
    )
    out = capsys.readouterr().out.splitlines()
    assert "decode_attention/vllm: bridged, by torch and h100_sxm" in out
    assert out[-1] == f"device file: {to}"
    assert load_device(str(to)).lane("decode_attention", "vllm").level == "bridged"
    assert (
        main(["simulate", "--device", str(to), "--model", "llama-3.1-8b", "--set", "workload.requests=20"])
        == 0
    )
    assert "bridged" in " ".join(capsys.readouterr().out.split())


def test_a_device_without_torch_lanes_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    to = tmp_path / "bridged.yaml"
    assert main(["calibrate", "bridge", "--device", "a100_sxm_80gb", "--to", str(to)]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: no vllm lane of a100_sxm_80gb can be bridged by h100_sxm: ")
    assert err.count("\n") == 1
    assert not to.exists()
