"""The worked examples of docs/levers/contention.md are what the simulator says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from membound.sim.run import simulate
from membound.sim.scenario import load_scenario, parse_scenario
from membound.sim.scenario.colocated import SEED_APART

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/levers/contention.md").read_text()


def row(start: str) -> list[float]:
    """Return the figures of the table row that starts so."""
    (line,) = (line for line in PAGE.splitlines() if line.startswith(f"| {start} |"))
    return [float(found) for found in re.findall(r"(\d+\.\d+) (?:ms|x|%)", line)]


def figures(summary: dict[str, Any], *paths: tuple[str, str]) -> list[float]:
    return [1e3 * summary["latency"][metric][name] for metric, name in paths]


def test_two_models() -> None:
    path = ROOT / "examples/two-models.yaml"
    together = simulate(load_scenario(path)).summary()
    data = load_scenario(path).to_dict()
    own = data.pop("colocated")
    second = data | {key: own[key] for key in own if key not in ("name", "engine")}
    second["simulation"] = {"seed": SEED_APART}
    alone = [simulate(parse_scenario(scenario)).summary() for scenario in (data, second)]
    for name, single, beside in zip(
        ("llama-3.1-8b", "qwen3-14b"), alone, (together, together["colocated"]), strict=True
    ):
        means = ("ttft_s", "mean"), ("tpot_s", "mean")
        found = [*figures(single, *means), *figures(beside, *means), beside["contention"]["slowdown"]]
        assert row(name) == pytest.approx(found, rel=5e-3)
    waits = together["contention"]["waited_share"]
    said = re.search(r"waits (\S+) % for HBM and (\S+) % for compute", PAGE)
    assert said is not None
    assert [float(share) for share in said.groups()] == pytest.approx(
        [100 * waits["hbm"], 100 * waits["compute"]], abs=0.06
    )


@pytest.mark.parametrize(
    ("split", "start"), [("null", "mixed steps"), ("{prefill: 0.6, decode: 0.4}", "0.6, 0.4"),
                         ("{prefill: 0.8, decode: 0.2}", "0.8, 0.2")],
)  # fmt: skip
def test_split_units(split: str, start: str) -> None:
    scenario = load_scenario(ROOT / "examples/compute-split.yaml", [f"compute_split={split}"])
    found = simulate(scenario).summary()
    paths = ("ttft_s", "mean"), ("tpot_s", "mean"), ("itl_s", "p99")
    assert row(start) == pytest.approx([*figures(found, *paths), 100 * found["slo"]["attainment"]], rel=5e-3)
