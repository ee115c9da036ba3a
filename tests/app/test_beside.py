"""A table says of a second model on the device, and of steps that others slowed."""

from __future__ import annotations

from typing import Any

from membound.app.render import render
from membound.sim.run import simulate
from membound.sim.scenario import parse_scenario

LOAD: dict[str, Any] = {
    "arrivals": {"kind": "closed_loop", "concurrency": 4},
    "input_tokens": 1000,
    "output_tokens": {"kind": "uniform", "low": 2, "high": 40},
    "requests": 16,
}
SCENARIO: dict[str, Any] = {
    "device": "h200_sxm",
    "model": "llama-3.1-8b",
    "kv_cache": {"max_model_len": 4096},
    "workload": LOAD,
}


def table(**beside: Any) -> str:
    return render(simulate(parse_scenario({**SCENARIO, **beside})).summary())


def test_a_second_model_has_a_latency_table_of_its_own() -> None:
    colocated = {"model": "qwen3-8b", "kv_cache": {"max_model_len": 4096}, "workload": LOAD}
    shown = table(colocated=colocated)
    assert sum(line.startswith("TTFT  ") for line in shown.splitlines()) == 2
    assert "qwen3-8b [ms]" in shown
    assert "times as long as alone" in shown
    assert "colocated is an unvalidated lever" in shown


def test_steps_on_split_units_say_what_they_wait_for() -> None:
    shown = table(compute_split={"prefill": 0.5, "decode": 0.5})
    assert "for compute units" in shown
    assert "compute_split is an unvalidated lever" in shown


def test_nothing_is_said_of_others_where_there_are_none() -> None:
    assert "alone" not in table()
