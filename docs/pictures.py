"""Every picture of the documentation, from runs of the tool itself.

    python docs/pictures.py [NAME ...]

Needs ``membound[app]``. Without names all are made anew, in a minute or two.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import membound as mb
from membound.app.charts.levers import tornado, tornado_rows
from membound.app.charts.picture import picture
from membound.app.charts.requests import itl_by_position, waterfall
from membound.app.charts.roofline import batch_curve, roofline
from membound.app.charts.shares import limiter_bars, share_bars
from membound.sim.output.views import cause_rows, limiter_rows, position_rows, waterfall_rows

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "pictures"
DEMO = "examples/demo-chat.yaml"
LONG = "examples/long-answers.yaml"


def run(scenario: str, *settings: str, keep_steps: bool = False) -> mb.SimulationResult:
    """Serve a scenario of the repository with some leaves set."""
    return mb.simulate(mb.load_scenario(ROOT / scenario, list(settings)), keep_steps=keep_steps)


def summaries(scenario: str, settings: dict[str, Iterable[str]], requests: int) -> dict[str, Any]:
    """Serve variants of one scenario and return label -> summary."""
    first = f"workload.requests={requests}"
    return {label: run(scenario, first, *own).summary() for label, own in settings.items()}


def pools(scenario: str, requests: int) -> dict[str, Any]:
    """Serve a scenario with pools, and on as many replicas that do both; return label -> shares of time."""
    apart, both = (
        summaries(scenario, {"both on all": settings}, requests)["both on all"]
        for settings in ([], ["cluster={replicas: 4}"])
    )
    return {"both on all": both} | apart["pools"]


def files(folder: str, requests: int) -> dict[str, Any]:
    """Serve every scenario of a folder and return name -> summary."""
    found: dict[str, Any] = {}
    for path in sorted((ROOT / folder).glob("*.yaml")):
        scenario = mb.load_scenario(path, [f"workload.requests={requests}"])
        found[scenario.name] = mb.simulate(scenario).summary()
    return found


def explained() -> Any:
    """What each lever of the demo brings, the largest first."""
    scenario = mb.load_scenario(ROOT / DEMO)
    found = mb.explain(scenario, requests=60, jobs=1).to_dict()
    return tornado(tornado_rows(found), metric="E2E mean", most=8)


def stalls(scheduler: str, budget: int) -> Any:
    """Forty requests of a busy engine, and when others' prompts held them up."""
    load = [
        "workload.requests=300",
        "workload.output_tokens=100",
        f"scheduler.name={scheduler}",
        f"scheduler.max_num_batched_tokens={budget}",
    ]
    result = run("examples/levers-batching/3-vllm-v0.yaml", *load, keep_steps=True)
    return waterfall(waterfall_rows(mb.view_of(result), requests=12), height=150)


def gaps(settings: dict[str, list[str]]) -> Any:
    """How the time between tokens grows along answers."""
    rows: list[dict[str, Any]] = []
    for label, own in settings.items():
        view = mb.view_of(run(LONG, "workload.requests=24", *own, keep_steps=True))
        rows += [{**row, "scenario": label} for row in position_rows(view, buckets=40)]
    return itl_by_position(rows)


def rooflines() -> Any:
    """Where the steps of the demo lie under the roofline of an H100."""
    return roofline(_roofline(DEMO).to_dict())


def _roofline(scenario: str, *settings: str) -> Any:
    return mb.roofline(mb.load_scenario(ROOT / scenario, ["workload.requests=60", *settings]))


def batches(*settings: str) -> Any:
    """What a larger batch of decodes brings."""
    return batch_curve(_roofline(DEMO, *settings).to_dict()["curve"])


def q(weights: str) -> list[str]:
    """Weights in a number format."""
    return [f"quantization.weights={weights}"]


PICTURES: dict[str, Callable[[], Any]] = {
    "tornado": explained,
    "roofline": rooflines,
    "batch-curve": batches,
    "batching-limits": lambda: limiter_bars(limiter_rows(files("examples/levers-batching", 400))),
    "stalls-vllm-v0": lambda: stalls("vllm_v0", 8192),
    "stalls-sarathi": lambda: stalls("sarathi", 512),
    "kv-memory-limits": lambda: limiter_bars(limiter_rows(summaries(
        "examples/levers-kv/2-paged.yaml",
        {name: [f"kv_cache.allocator={name}"] for name in ("contiguous", "buddy", "contiguous_known", "paged")}, 300,
    ))),
    "prefix-caching": lambda: share_bars(cause_rows(summaries(
        "examples/levers-kv/2-paged.yaml",
        {"computed anew": [], "prefixes cached": ["kv_cache.enable_prefix_caching=true"]}, 400,
    ))),
    "kv-precision": lambda: gaps({
        "bf16": [], "fp8": ["quantization.kv_cache=fp8"],
        "window of 4,096": ["kv_cache.eviction={kind: window, window: 4096}"],
    }),
    "kv-tiers": lambda: share_bars(cause_rows(summaries(
        "examples/levers-kv/3-paged-prefix.yaml",
        {"no tier": [], "host memory": ["kv_cache.tiers=[{kind: dram, capacity: 64GiB}]"],
         "SSD": ["kv_cache.tiers=[{kind: nvme}]"]}, 400,
    ))),
    "quantisation": lambda: share_bars(cause_rows(summaries(
        DEMO, {name: q(name) for name in ("bf16", "fp8", "w8a16", "w4a16")}, 300,
    ))),
    "attention": lambda: share_bars(cause_rows(summaries(
        DEMO, {name: [f"kernels.attention={name}"] for name in ("flash", "naive")}, 300,
    ))),
    "parallelism": lambda: share_bars(cause_rows(summaries(
        DEMO,
        {f"{n} GPUs": [f"parallelism.tensor_parallel_size={n}", "model=llama-3.1-70b", "quantization.weights=fp8",
                       "workload.arrivals.rate_per_s=2"] for n in (1, 2, 4, 8)}, 40,
    ))),
    "experts": lambda: batches("model=qwen3-30b-a3b"),
    "hbm": lambda: gaps({
        "3.35 TB/s": [], "x1.5": ["device={base: h100_sxm, hbm_bandwidth: x1.5}"],
        "x3": ["device={base: h100_sxm, hbm_bandwidth: x3}"],
    }),
    "cluster": lambda: share_bars(cause_rows(summaries(
        "examples/cluster.yaml",
        {name: [f"cluster.router={name}"] for name in ("round_robin", "least_outstanding", "prefix_affinity")}, 400,
    ))),
    "disaggregation": lambda: share_bars(cause_rows(pools("examples/disaggregated.yaml", 400))),
}  # fmt: skip
"""File name -> what draws it."""


def main(names: list[str]) -> None:
    """Draw these pictures, or all."""
    FOLDER.mkdir(exist_ok=True)
    for name in names or PICTURES:
        svg = picture(PICTURES[name](), "svg")
        (FOLDER / f"{name}.svg").write_bytes(svg + b"\n")
        sys.stderr.write(f"{name}.svg {len(svg) / 1e3:.0f} kB\n")


if __name__ == "__main__":
    main(sys.argv[1:])
