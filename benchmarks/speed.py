"""What a simulated request costs: CPU seconds, requests per CPU second, memory, and bare SimPy timeouts.

    python benchmarks/speed.py [--requests 1000 5000 20000] [--repeats 3] [--set key=value ...]

The common workload (examples/common-workload.yaml) is simulated at several sizes, each in a process of its own. The
yardstick makes the figure independent of the machine: in the same process, before and after, 256 SimPy processes that
yield timeouts and nothing else; a request's cost is given in such timeouts. Other simulators on this workload, per CPU
second: Vidur 360 requests, BLIS (Go) 1,850.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

SCENARIO = Path(__file__).resolve().parent.parent / "examples" / "common-workload.yaml"
PROCESSES, TIMEOUTS = 256, 256_000


def timeout_seconds() -> float:
    """Return the CPU time of one bare SimPy timeout, 256 processes yielding them [s]."""
    import simpy

    env = simpy.Environment()

    def clock() -> Iterator[simpy.Event]:
        while True:
            yield env.timeout(1)

    for _ in range(PROCESSES):
        env.process(clock())
    start = time.process_time()
    env.run(until=TIMEOUTS // PROCESSES)
    return (time.process_time() - start) / TIMEOUTS


def measure(requests: int, sets: list[str], yardstick: bool) -> dict[str, Any]:
    """Simulate ``requests`` requests in this process and return what that cost."""
    from membound.sim.run import simulate
    from membound.sim.scenario import load_scenario, resolve

    scenario = load_scenario(SCENARIO, [f"workload.requests={requests}", *sets])
    resolved = resolve(scenario)
    startup = time.process_time()
    before = timeout_seconds() if yardstick else 0.0
    begun = time.process_time()
    summary = simulate(resolved).summary()
    seconds = time.process_time() - begun
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    after = timeout_seconds() if yardstick else 0.0
    return {
        "startup_s": startup,
        "simulate_s": seconds,
        "peak_mb": peak,
        "timeout_us": 1e6 * (before + after) / 2,
        "steps": summary["simulation"]["steps"],
        "jumps": summary["simulation"]["jumps"],
        "completed": summary["requests"]["completed"],
    }


def in_process(requests: int, sets: list[str], repeats: int) -> dict[str, Any]:
    """Measure in fresh processes and return the run with the median cost in timeouts."""
    runs: list[dict[str, Any]] = []
    for _ in range(repeats):
        command = [sys.executable, __file__, "--one", str(requests), *(f"--set={item}" for item in sets)]
        runs.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    for run in runs:
        run["timeouts"] = run["simulate_s"] / requests * 1e6 / run["timeout_us"]
    middle = statistics.median_low([run["timeouts"] for run in runs])
    found = next(run for run in runs if run["timeouts"] == middle)
    found["startup_s"] = min(run["startup_s"] for run in runs)
    return found


def compare_lengths(sets: list[str], repeats: int, requests: int = 3000) -> int:
    """Print what ten times the output tokens cost: a tenth of the rate keeps the tokens per second equal."""
    common = ["device=h100_sxm", "model=llama-3.1-8b", "kv_cache.max_model_len=16384", *sets]
    shortest, rate = None, 12.0
    print("output x  us/request  timeouts/request  steps/request  CPU against x1")
    for factor in (1, 10):
        lengths = {"p50": 150, "min": 4, "max": 800}
        changes = [f"workload.output_tokens.{name}={value * factor}" for name, value in lengths.items()]
        run = in_process(
            requests, [*common, *changes, f"workload.arrivals.rate_per_s={rate / factor}"], repeats
        )
        shortest = shortest or run["timeouts"]
        print(
            f"{factor:8d}  {run['simulate_s'] / requests * 1e6:10.1f}  {run['timeouts']:16.1f}"
            f"  {run['steps'] / requests:13.1f}  {run['timeouts'] / shortest:14.2f}",
            flush=True,
        )
    return 0


TIERS = (
    "workload.sessions={groups: 50, system_prompt_tokens: 512, prompts_per_group: 1000}",
    "workload.input_tokens={kind: lognormal, p50: 450, sigma: 1.1, min: 16, max: 2784}",
)
DRAFTED = "speculative={method: eagle, num_speculative_tokens: 3, acceptance: 0.7}"
BEHIND = "kv_cache.tiers=[{kind: dram, capacity: 200GiB}, {kind: nvme}]"


def compare_tiers(sets: list[str], repeats: int, requests: int = 3000) -> int:
    """Print what prefix caching costs on prompts of about the same length, tiers behind it, and speculation beside.

    At the common load and at lower ones: the busier a plain engine is, the more requests share each of its steps.
    """
    loads = {
        "plain": (),
        "shared prefixes": TIERS,
        "and two tiers": (*TIERS, BEHIND),
        "and speculation": (*TIERS, BEHIND, DRAFTED),
    }
    print_loads(loads, sets, repeats, requests)
    return 0


def compare_speculation(sets: list[str], repeats: int, requests: int = 3000) -> int:
    """Print what speculation costs at the common load, which saturates plain decoding, and at one it keeps up with.

    Where plain decoding saturates, more requests share each of its steps: per request it then has fewer of them.
    """
    print_loads({"plain": (), "drafted": (DRAFTED,)}, sets, repeats, requests)
    return 0


def print_loads(loads: Mapping[str, Sequence[str]], sets: list[str], repeats: int, requests: int) -> None:
    """Print the cost of scenarios by name, given as what they change, at three rates; the first is compared with."""
    width = max(map(len, loads))
    columns = "us/request  timeouts/request  steps/request  CPU against plain"
    print(f"requests/s  {'load':{width}s}  {columns}")
    for rate in (4, 2, 1):
        plain = None
        for name, more in loads.items():
            run = in_process(requests, [f"workload.arrivals.rate_per_s={rate}", *more, *sets], repeats)
            plain = plain or run["timeouts"]
            print(
                f"{rate:10d}  {name:{width}s}  {run['simulate_s'] / requests * 1e6:10.1f}  {run['timeouts']:16.1f}"
                f"  {run['steps'] / requests:13.1f}  {run['timeouts'] / plain:17.2f}",
                flush=True,
            )


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, nargs="+", default=[1000, 5000, 20_000, 1_000_000])
    parser.add_argument(
        "--repeats", type=int, default=3, help="fresh processes per size; the median is shown"
    )
    parser.add_argument(
        "--set", action="append", default=[], help="change the scenario, as in membound simulate"
    )
    parser.add_argument(
        "--longer", action="store_true", help="only compare with 10x the output tokens at equal load"
    )
    parser.add_argument(
        "--tiers", action="store_true", help="only compare with prefix caching, KV tiers and speculation on"
    )
    parser.add_argument(
        "--speculation", action="store_true", help="only compare with speculative decoding, at three loads"
    )
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one, options.set, yardstick=True)))
        return 0
    if options.tiers:
        return compare_tiers(options.set, options.repeats)
    if options.speculation:
        return compare_speculation(options.set, options.repeats)
    if options.longer:
        return compare_lengths(options.set, options.repeats)
    print(
        "requests  start-up s  simulate s  requests/CPU s  us/request  timeout us  timeouts/request"
        "  peak MB  steps/request"
    )
    for requests in options.requests:
        run = in_process(requests, options.set, options.repeats if requests <= 100_000 else 1)
        print(
            f"{requests:8d}  {run['startup_s']:10.2f}  {run['simulate_s']:10.2f}  {requests / run['simulate_s']:14.0f}"
            f"  {run['simulate_s'] / requests * 1e6:10.1f}  {run['timeout_us']:10.2f}  {run['timeouts']:16.1f}"
            f"  {run['peak_mb']:7.0f}  {run['steps'] / requests:13.1f}",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
