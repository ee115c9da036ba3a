"""What the sidebar's levers ask: the scenario, the command that asks the same, and an address read back."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from membound.app.cli import main
from membound.app.dashboard.asked import (
    Base,
    assignments,
    base_of,
    command_of,
    moved,
    read_address,
    scenario_of,
)
from membound.app.dashboard.levers import Lever, Value, levers
from membound.sim.scenario import Scenario, load_scenario, parse_scenario

ROOT = Path(__file__).parents[3]
BASE = base_of()


def values_of(lever: Lever) -> st.SearchStrategy[Value]:
    if lever.kind == "choice":
        return st.sampled_from(lever.choices)
    if lever.kind == "whole":
        return st.integers(int(lever.low), int(lever.high))
    return (
        st.floats(lever.low, lever.high)
        .map(lambda value: float(f"{value:.5g}"))
        .filter(lambda value: lever.low <= value <= lever.high)
    )


STANDS = st.fixed_dictionaries({each.key: st.just(each.default) | values_of(each) for each in levers()})


def test_untouched_levers_ask_what_scenario_init_and_the_command_line_ask():
    asked = scenario_of(BASE, BASE.defaults())
    assert assignments(BASE, BASE.defaults()) == {}
    assert command_of(BASE, BASE.defaults()) == "membound simulate --device h100_sxm --model llama-3.1-8b"
    assert asked.workload is not None
    assert asked.workload.requests == 1000


@settings(max_examples=60)
@given(values=STANDS)
def test_whatever_stands_in_the_levers_is_a_scenario_that_its_own_file_repeats(
    values: dict[str, Value], tmp_path_factory
):
    asked = scenario_of(BASE, values)
    path = tmp_path_factory.mktemp("yaml") / "scenario.yaml"
    path.write_text(asked.to_yaml())
    assert load_scenario(path) == asked


@settings(max_examples=25)
@given(values=STANDS)
def test_the_command_beside_a_scenario_asks_that_scenario(values: dict[str, Value]):
    from membound.app import flags

    words = shlex.split(command_of(BASE, values))[2:]
    given_options: dict[str, object] = {}
    sets: list[str] = []
    for option, value in zip(words[::2], words[1::2], strict=True):
        if option == "--set":
            sets.append(value)
        else:
            given_options[option] = value
    assert flags.scenario_of(None, given_options, sets, "simulate") == scenario_of(BASE, values)


def test_the_command_runs(capsys: pytest.CaptureFixture[str]):
    values = BASE.defaults() | {"n": 20, "rate": 20.0, "tp": "2", "bw": 1.5, "kv": "fp8", "osl": 16}
    capsys.readouterr()
    assert main([*shlex.split(command_of(BASE, values))[1:], "--format", "json"]) == 0
    ran = json.loads(capsys.readouterr().out)["scenario"]
    assert ran["device"] == {"base": "h100_sxm", "hbm_bandwidth": "x1.5"}
    assert ran["workload"]["output_tokens"] == {
        "kind": "lognormal",
        "p50": 16,
        "p99": 91,
        "max": 182,
        "min": 1,
        "sigma": None,
    }


@pytest.mark.parametrize("lever", levers(), ids=lambda lever: lever.key)
def test_every_lever_is_read_back_from_its_address_at_both_ends(lever: Lever):
    ends = lever.choices if lever.kind == "choice" else (lever.low, lever.high)
    for end in (ends[0], ends[-1]):
        word = str(int(end)) if lever.kind == "whole" else str(end)
        values, notes = read_address(BASE, {lever.key: [word]})
        assert notes == []
        assert values[lever.key] == (end if lever.kind == "choice" else float(end))


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ({"device": ["h100_smx"]}, "nearest: 'h100_sxm'"),
        ({"rate": ["fast"]}, "not a number; allowed: 0.01 to 2,000"),
        ({"rate": ["nan"]}, "allowed: 0.01 to 2,000"),
        ({"rate": ["-3"]}, "allowed: 0.01 to 2,000"),
        ({"n": ["1e9"]}, "whole numbers from 20 to 20,000"),
        ({"seqs": ["2.5"]}, "whole numbers from 1 to 8,192"),
        ({"tp": ["3"]}, "allowed: 1, 2, 4, 8"),
        ({"rate": ["1e400"]}, "allowed: 0.01 to 2,000"),
        ({"n": ["9" * 6000]}, "whole numbers from 20 to 20,000"),
        ({"seed": ["-1"]}, "whole numbers from 0"),
        ({"rate": [""]}, "allowed: 0.01 to 2,000"),
        ({"device": ["../../etc/passwd"]}, "device"),
        ({"scheduler": ["os:system"]}, "scheduler"),
        ({"model": ["x" * 100_000]}, "model"),
    ],
)
def test_what_an_address_cannot_mean_leaves_the_default_and_is_said(word: dict[str, list[str]], told: str):
    values, notes = read_address(BASE, word)
    assert values == BASE.defaults()
    assert len(notes) == 1
    assert told in notes[0]


def test_a_lever_that_changes_nothing_as_the_others_stand_asks_nothing():
    values = BASE.defaults() | {"users": 64, "link": 2.0}
    assert moved(BASE, values) == {}
    closed = values | {"arrivals": "closed_loop", "rate": 3.0}
    assert assignments(BASE, closed) == {"workload.arrivals": {"kind": "closed_loop", "concurrency": 64}}


@pytest.mark.parametrize("name", ["demo-chat", "azure-chat-h100", "long-answers", "levers-kv/5-eviction-25"])
def test_untouched_levers_of_a_file_ask_the_file(name: str):
    path = ROOT / "examples" / f"{name}.yaml"
    base = base_of(path)
    assert scenario_of(base, base.defaults()) == load_scenario(path)


def test_a_file_with_a_trace_has_no_levers_for_a_load_that_is_drawn():
    base = base_of(ROOT / "examples" / "azure-chat-h100.yaml")
    assert not {"rate", "isl", "n"} & set(base.defaults())
    assert {"device", "seed", "ttft"} <= set(base.defaults())


def test_a_faster_rate_leaves_the_bursts_of_a_file_as_they_are():
    base = base_of(ROOT / "examples" / "demo-chat.yaml")
    before = scenario_of(base, base.defaults())
    after = scenario_of(base, base.defaults() | {"rate": 11.0})
    assert arrivals(after) == arrivals(before) | {"rate_per_s": 11.0}


def arrivals(scenario: Scenario) -> dict[str, object]:
    assert scenario.workload is not None
    return scenario.to_dict()["workload"]["arrivals"]


def test_a_path_in_a_file_stands_among_the_choices(tmp_path: Path):
    config = ROOT / "hwmodels" / "models" / "llama-2-7b.json"
    path = tmp_path / "own.yaml"
    load = "arrivals: {kind: poisson, rate_per_s: 1}, input_tokens: 8, output_tokens: 4, requests: 20"
    path.write_text(f"device: l40s\nmodel: {config}\nworkload: {{{load}}}\n")
    base: Base = base_of(path)
    assert base.lever("model").default == str(config)
    assert str(config) in base.lever("model").choices
    assert parse_scenario(base.data) == scenario_of(base, base.defaults())
