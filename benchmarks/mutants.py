"""Whether the tests would notice: one fault at a time in a copy of the package, and the few tests that must fail.

``python benchmarks/mutants.py [WORD]`` takes the faults whose place contains the word; it exits with 1 where one lives.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOWERING = (
    "tests/hwmodels/test_lowering.py",
    "tests/theory/test_roofline_corners.py",
    "tests/hwmodels/test_stepmodel.py",
)
TIMING = ("tests/hwmodels/test_timing_gemm.py", "tests/hwmodels/test_timing_attention.py",
          "tests/hwmodels/test_timing_collectives.py", "tests/hwmodels/test_kernel_phases.py")  # fmt: skip
SCHEDULER = ("tests/sim/test_runs_by_hand.py", "tests/oracle/test_reference.py", "tests/theory/test_scheduling.py",
             "tests/oracle/test_replay.py", "tests/invariants/test_fast_forward.py")  # fmt: skip
ALLOCATOR = ("tests/invariants/test_conformance.py", "tests/oracle/test_reference.py",
             "tests/theory/test_prefix_caching.py", "tests/invariants/test_fast_forward.py")  # fmt: skip
METRICS = ("tests/sim/test_metrics.py", "tests/sim/test_verdict.py", "tests/sim/test_histogram.py")
SECONDS = 1200
"""Longest that the tests of one fault may take; a fault that makes them hang is caught [s]."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One wrong line: where, what is there, what stands there instead, and the tests that must fail."""

    file: str
    right: str
    wrong: str
    tests: tuple[str, ...]


FAULTS = (
    Fault("hwmodels/lowering.py", "return 2.0 * self.n * self.k", "return 1.0 * self.n * self.k", LOWERING),
    Fault("hwmodels/lowering.py", "return self.n_kv_heads * (self.head_dim + self.v_head_dim) * self.kv_width",
          "return self.n_heads * (self.head_dim + self.v_head_dim) * self.kv_width", LOWERING),
    Fault("hwmodels/lowering.py", "allreduces=sublayers if self.tp > 1 else 0",
          "allreduces=sublayers if self.tp > 2 else 0", LOWERING),
    Fault("hwmodels/lowering.py", "return 2.0 * self.n_heads * (self.head_dim + self.v_head_dim)",
          "return 2.0 * self.n_heads * self.head_dim", LOWERING),
    Fault("hwmodels/timing/gemm.py", "whole = np.ceil(m / (rows * together)) * together", "whole = m / rows", TIMING),
    Fault("hwmodels/timing/gemm.py", "bandwidth = p.eb * chip.bandwidth", "bandwidth = chip.bandwidth", TIMING),
    Fault("hwmodels/timing/gemm.py", "hbm_weights=in_memory * by_weights,", "hbm_weights=in_memory,", TIMING),
    Fault("hwmodels/timing/gemm.py", "latency=params.t0 + chosen(split)", "latency=0.0 + chosen(split)", TIMING),
    Fault("sim/scheduler/vllm_v1.py", "            return view.running[-1]\n",
          "            return view.running[0]\n", SCHEDULER),
    Fault("sim/scheduler/vllm_v1.py", "if len(view.running) + len(view.fetching) >= self.max_num_seqs:",
          "if len(view.running) + len(view.fetching) > self.max_num_seqs:", SCHEDULER),
    Fault("sim/scheduler/vllm_v1.py", "            count = min(count, budget)\n            must_hold",
          "            must_hold", SCHEDULER),
    Fault("sim/scheduler/vllm_v1.py", "            budget -= count\n        return budget\n\n    def _share_out",
          "            budget -= 1\n        return budget\n\n    def _share_out", SCHEDULER),
    Fault("sim/kvcache/paged.py", "limit = (request.num_tokens - 1) // self.block_size",
          "limit = request.num_tokens // self.block_size", ALLOCATOR),
    Fault("sim/kvcache/paged.py", "if wanted + idle + keep_free > self.free_blocks:",
          "if wanted + keep_free > self.free_blocks:", ALLOCATOR),
    Fault("sim/kvcache/paged.py", "        self.free_blocks += released\n        self.held_blocks -= total\n",
          "        self.free_blocks += released - 1\n        self.held_blocks -= total\n", ALLOCATOR),
    Fault("sim/kvcache/paged.py", "full = min(known // self.block_size, holding.shared)",
          "full = min(-(-known // self.block_size), holding.shared)", ALLOCATOR),
    Fault("sim/metrics/latency.py", 'gaps = record.requests["output_tokens"][chosen] - 1',
          'gaps = record.requests["output_tokens"][chosen]', METRICS),
    Fault("sim/metrics/latency.py", "position = (ordered.size - 1) * Fraction(str(percent)) / 100",
          "position = ordered.size * Fraction(str(percent)) / 101", METRICS),
    Fault("sim/metrics/slo.py", "attainment, target = good / record.n_requests,",
          "attainment, target = good / max(int(completed(record).sum()), 1),", METRICS),
    Fault("sim/metrics/metrics.py", "usd = price * record.setup.paid_gpus * record.duration_s / 3600",
          "usd = price * record.duration_s / 3600", METRICS),
)  # fmt: skip


def main(word: str = "") -> int:
    """Print one line a fault and return 1 where one was not noticed."""
    wanted = [fault for fault in FAULTS if word in fault.file]
    lived = 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = _copied(Path(folder))
        for fault in wanted:
            path = copy / fault.file
            text = path.read_text()
            assert text.count(fault.right) == 1, f"{fault.file}: {text.count(fault.right)} x {fault.right!r}"
            path.write_text(text.replace(fault.right, fault.wrong))
            caught = _caught(copy, fault.tests)
            path.write_text(text)
            lived += not caught
            told = fault.wrong.strip().splitlines()[0]
            print(f"{fault.file:28} {told[:64]:64} {caught or 'LIVED'}", flush=True)
    print(f"{len(wanted) - lived} of {len(wanted)} faults caught")
    return int(lived > 0)


def _copied(folder: Path) -> Path:
    """Copy the files of the repository, and link the measured data where a clone has them beside it."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    copy = folder / "membound"
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, copy / name)
    if (ROOT.parent / "shared").exists():
        (folder / "shared").symlink_to(ROOT.parent / "shared")
    return copy


def _caught(copy: Path, tests: tuple[str, ...]) -> str:
    """Return the first test that fails, "a hang" where they do not end, or "" where all pass."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    environment = os.environ | {"PYTHONPATH": str(copy.parent), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        ran = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, text=True, check=False, timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        return "a hang"
    failed = [line.removeprefix("FAILED ") for line in ran.stdout.splitlines() if line.startswith("FAILED ")]
    if ran.returncode == 1 and failed:
        return failed[0].partition(" - ")[0].partition("::")[2]
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ""


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
