"""A device number scaled: every point is a run of its own, and it says where more stops helping."""

from __future__ import annotations

import json
from pathlib import Path

import membound as mb
import pytest
from membound.app.cli import main
from membound.sim.run import simulate
from membound.sim.studies.scaling import WORTH, scaling
from membound.sim.studies.study import StudyError

EXAMPLES = Path(__file__).parents[2] / "examples" / "next-gen-hbm"


def scenario(**changes):
    load = {"arrivals": {"kind": "closed_loop", "concurrency": 8}, "input_tokens": 64, "output_tokens": 64}
    asked = {"device": "h100_sxm", "model": "llama-3.1-8b", "workload": {**load, "requests": 24}}
    return mb.Scenario.model_validate(asked | {"kv_cache": {"max_model_len": 4096}} | changes)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


def test_every_point_is_the_run_of_its_device(folder):
    found = scaling(scenario(), "hbm_bandwidth", factors=[1, 2], folder=folder, jobs=1)
    for factor, point in zip((1, 2), found.points, strict=True):
        asked = scenario(device={"base": "h100_sxm", "hbm_bandwidth": f"x{factor}"})
        summary = simulate(asked).summary()
        assert point.value == summary["throughput"]["output_tokens_per_s"]
        assert sum(point.time_share.values()) == pytest.approx(1)


def test_a_small_batch_gains_from_bandwidth_until_fixed_times_are_left(folder):
    factors = [0.5, 1, 2, 4, 16, 64, 256]
    found = scaling(scenario(), "hbm_bandwidth", factors=factors, folder=folder, jobs=1)
    slopes = [point.elasticity for point in found.points[:-1]]
    assert slopes == sorted(slopes, reverse=True)
    assert slopes[0] > 0.6
    assert found.stops_at is not None
    assert found.stops_at > 2
    assert not found.takes_over.startswith("hbm")
    assert f"stops helping at x{found.stops_at:g}" in found.answer
    after = [p.elasticity for p in found.points if p.factor >= found.stops_at and p.elasticity is not None]
    assert max(after) < WORTH


def test_memory_that_is_never_full_helps_nowhere_and_matters_where_it_is(folder):
    plenty = scaling(scenario(), "hbm_capacity", factors=[0.5, 1, 2], folder=folder, jobs=1)
    assert plenty.stops_at == 0.5
    assert "helps nowhere" in plenty.answer
    assert len({point.value for point in plenty.points}) == 1
    load = {
        "arrivals": {"kind": "closed_loop", "concurrency": 40},
        "input_tokens": 3000,
        "output_tokens": 500,
    }
    tight = scenario(device="l4", workload={**load, "requests": 80})
    short = scaling(tight, "hbm_capacity", factors=[1, 1.5, 4, 8], folder=folder, jobs=1)
    assert short.points[0].limiter["kv_blocks"] > 0.5
    assert short.points[0].elasticity > 1, "a larger batch, and weights that leave more of the card to KV"
    assert short.limiter != "kv_blocks"


def test_what_cannot_run_is_a_point_with_its_reason(folder):
    found = scaling(scenario(), "hbm_capacity", factors=[0.1, 1], folder=folder, jobs=1)
    assert "does not fit" in found.points[0].error
    assert found.points[0].value is None
    assert found.points[1].value is not None


@pytest.mark.parametrize(
    ("number", "factors", "said"),
    [
        ("hbm_bandwith", [1, 2], "nearest: 'hbm_bandwidth'"),
        ("hbm_bandwidth", [1], "two or more numbers above 0"),
        ("hbm_bandwidth", [0, 1], "two or more numbers above 0"),
    ],
)
def test_what_cannot_be_scaled_is_said_in_a_line(number, factors, said, folder):
    with pytest.raises(StudyError, match=said):
        scaling(scenario(), number, factors=factors, folder=folder, jobs=1)


@pytest.mark.parametrize("load", ["chat.yaml", "long-context.yaml"])
def test_the_example_says_where_bandwidth_and_capacity_stop_helping(load, tmp_path, capsys):
    words = [
        "--scale",
        "hbm_bandwidth",
        "--scale",
        "hbm_capacity",
        "--requests",
        "40",
        "--factors",
        "0.5,1,3",
    ]
    kept = ["--out", str(tmp_path), "--jobs", "1", "--quiet"]
    assert main(["explain", str(EXAMPLES / load), *words, *kept]) == 0
    said = capsys.readouterr().out
    assert said.count("answer ") == 2
    assert "none of them was measured" in " ".join(said.split())
    assert max(len(line) for line in said.splitlines()) <= 120
    assert main(["explain", str(EXAMPLES / load), *words, *kept, "--format", "json"]) == 0
    curves = json.loads(capsys.readouterr().out)["curves"]
    assert [curve["number"] for curve in curves] == ["hbm_bandwidth", "hbm_capacity"]
    assert [point["factor"] for point in curves[0]["points"]] == [0.5, 1, 3]
    assert main(["explain", str(EXAMPLES / load), *words[:-1], "1;2", *kept]) == 2


@pytest.mark.parametrize("part", ["rubin-memory.yaml", "mi455x-memory.yaml"])
def test_announced_memories_are_what_ifs_and_say_so(part):
    resolved = mb.resolve(mb.load_scenario(EXAMPLES / part), "size")
    assert resolved.device.whatif
    assert any(note.startswith("what-if device") for note in resolved.warnings)
    assert resolved.device.hbm_bandwidth > 19e12
