"""What a sweep of 100 runs of 1,000 requests costs a core, what a kill at half of it loses, and what a repeat costs.

    python benchmarks/sweep.py [--points 100] [--requests 1000] [--jobs 2]

Three calls of `membound sweep` into one folder: one that is killed (SIGKILL, its workers too) when half of the runs are
kept, one that goes on, one that finds all of them; then one into an empty folder. CPU time is that of the processes
and their children, less what a sweep of four runs of one request costs (start-up, workers included). Bars: 15 s of CPU
time a core, nothing lost or run twice, a repeat in 3 s.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

CPU_S, REPEAT_S = 15.0, 3.0
BASE = {
    "device": "h100_sxm",
    "model": "llama-3.1-8b",
    "workload": {
        "arrivals": {"kind": "poisson", "rate_per_s": 8},
        "input_tokens": {"kind": "lognormal", "p50": 900, "p99": 5000, "max": "8k"},
        "output_tokens": {"kind": "lognormal", "p50": 200, "p99": 900, "max": "2k"},
    },
}


def write(folder: Path, points: int, requests: int) -> Path:
    """Write a study of so many points, over arrival rates and batch limits, and return its file."""
    (folder / "base.yaml").write_text(
        yaml.safe_dump(BASE | {"workload": BASE["workload"] | {"requests": requests}})
    )
    rates = [round(2 + 1.5 * at, 2) for at in range(max(points // 4, 1))]
    over = {
        "workload.arrivals.rate_per_s": rates,
        "scheduler.max_num_seqs": [32, 64, 128, 256][: min(points, 4)],
    }
    study = folder / "study.yaml"
    study.write_text(yaml.safe_dump({"base": "base.yaml", "over": over}))
    return study


def start(study: Path, out: Path, jobs: int) -> subprocess.Popen[bytes]:
    """Start a sweep as a process group of its own."""
    command = [sys.executable, "-m", "membound.app.cli", "sweep", str(study), "--out", str(out)]
    return subprocess.Popen(
        [*command, "--jobs", str(jobs), "--quiet"], stdout=subprocess.DEVNULL, start_new_session=True
    )


def kept(out: Path) -> list[Path]:
    """Return the runs that are kept."""
    return sorted((out / "runs").glob("*.parquet"))


def whole(study: Path, out: Path, jobs: int) -> tuple[float, float]:
    """Run a sweep to its end, and return CPU and wall time [s]."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    if start(study, out, jobs).wait():
        raise SystemExit("the sweep failed")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, time.monotonic() - began


def main() -> int:
    """Print the table; 1 if a bar is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--points", type=int, default=100)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        one, all_of_it = folder / "one", folder / "all"
        one.mkdir()
        start_up_s, _ = whole(write(one, 4, 1), one / "out", options.jobs)
        study = write(folder, options.points, options.requests)
        process = start(study, all_of_it, options.jobs)
        while len(kept(all_of_it)) < options.points // 2 and process.poll() is None:
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        before = {path: path.stat().st_mtime_ns for path in kept(all_of_it)}
        whole(study, all_of_it, options.jobs)
        again = sum(path.stat().st_mtime_ns != written for path, written in before.items())
        _, repeat_s = whole(study, all_of_it, options.jobs)
        fresh_s, wall_s = whole(study, folder / "fresh", options.jobs)
        cpu_s = (fresh_s - start_up_s) / options.jobs
        lost = options.points - len(kept(all_of_it))
    print(
        f"{options.points} runs of {options.requests} requests, {options.jobs} jobs; start-up {start_up_s:.1f} s of CPU"
    )
    print(f"CPU time a core     {cpu_s:6.1f} s   bar {CPU_S:g}   (wall {wall_s:.1f} s)")
    print(f"killed at {len(before):3d}, resumed: lost {lost}, run twice {again}   bar 0, 0")
    print(f"repeated            {repeat_s:6.1f} s   bar {REPEAT_S:g}")
    return int(cpu_s > CPU_S or bool(lost) or bool(again) or repeat_s > REPEAT_S)


if __name__ == "__main__":
    sys.exit(main())
