"""What a million requests over 64 replicas cost: CPU minutes of one core, and memory, behind two routers.

    python benchmarks/cluster.py [--requests 1000000] [--replicas 64] [--router least_outstanding prefix_affinity]

The common workload (examples/common-workload.yaml), with as many requests per second for each replica as for one;
behind prefix_affinity its prompts begin with one of 200 system prompts. Bars: 4 minutes of CPU time and 1.5 GB each.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

SCENARIO = Path(__file__).resolve().parent.parent / "examples" / "common-workload.yaml"
RATE_PER_S = 4
MINUTES, GB = 4.0, 1.5
PREFIXES = (
    "workload.sessions={groups: 200, system_prompt_tokens: 512, prompts_per_group: 100000}",
    "workload.input_tokens={kind: lognormal, p50: 450, sigma: 1.1, min: 16, max: 2784}",
)


def measure(requests: int, replicas: int, router: str) -> dict[str, Any]:
    """Simulate in this process and return what that cost."""
    from membound.sim.run import simulate
    from membound.sim.scenario import load_scenario

    sets = [f"workload.requests={requests}", f"workload.arrivals.rate_per_s={RATE_PER_S * replicas}"]
    sets += [f"cluster.replicas={replicas}", f"cluster.router={router}"]
    scenario = load_scenario(SCENARIO, [*sets, *(PREFIXES if router == "prefix_affinity" else ())])
    summary = simulate(scenario).summary()
    return {
        "cpu_s": time.process_time(),
        "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9,
        "completed": summary["requests"]["completed"],
        "steps": summary["simulation"]["steps"],
        "prefix_hit_rate": summary["kv"]["prefix_hit_rate"],
    }


def main() -> int:
    """Print the table; 1 if a bar is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--replicas", type=int, default=64)
    parser.add_argument("--router", nargs="+", default=["least_outstanding", "prefix_affinity"])
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.requests, options.replicas, options.one)))
        return 0
    print("router              requests  replicas  CPU min  (bar)  us/request  peak GB  (bar)  prefix hits")
    missed = False
    for router in options.router:
        command = [sys.executable, __file__, "--one", router, "--requests", str(options.requests)]
        command += ["--replicas", str(options.replicas)]
        run = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        minutes, peak, hits = run["cpu_s"] / 60, run["peak_gb"], run["prefix_hit_rate"] or 0.0
        missed |= minutes > MINUTES or peak > GB
        print(
            f"{router:18s}  {options.requests:8d}  {options.replicas:8d}  {minutes:7.2f}  {MINUTES:5.1f}"
            f"  {run['cpu_s'] / options.requests * 1e6:10.0f}  {peak:7.2f}  {GB:5.1f}  {hits:11.3f}",
            flush=True,
        )
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
