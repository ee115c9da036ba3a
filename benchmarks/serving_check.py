"""Served requests against the simulator: real runs replayed request by request, errors of what clients saw.

    python benchmarks/serving_check.py [--folder ../shared/measured/e2e/requests]

Only runs that calibration may look at are here; those it is judged on are not read.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from membound.sim.measured import Compared, compare_with_measured
from membound.sim.run import simulate
from membound.sim.scenario import Scenario
from membound.sim.scenario.resolve import resolve

FOLDER = Path(__file__).parents[2] / "shared" / "measured" / "e2e" / "requests"
RUNS = ("residency-sweep_rate-agg_2rps-vanilla", "residency-sweep_rate-agg_6rps-vanilla")
METRICS = {"ttft_s": "TTFT", "tpot_s": "TPOT", "e2e_s": "E2E"}


def scenario(run: str, folder: Path = FOLDER) -> Scenario:
    """Return the scenario of a run of Qwen3-14B on one H100 under vLLM 0.23 (inference-sim/residency-vllm).

    No two prompts share anything. Data sets that repeat whole prompts would show it: a request that agrees in
    tenant and length with an earlier one would get its first token sooner. Here it does not (2 requests/s:
    67.1 ms, the first of each 65.6 ms), and TTFT steps up where prompt and decodes together pass 1,024 rows,
    which a cached prefix would shift.
    """
    return Scenario.model_validate(
        {
            "name": run,
            "device": "h100_sxm",
            "model": "qwen3-14b",
            "engine": "vllm-0.23",
            "scheduler": {"max_num_seqs": 256, "max_num_batched_tokens": 8192},
            "kv_cache": {
                "num_gpu_blocks_override": 18038,
                "max_model_len": 40960,
                "gpu_memory_utilization": 0.92,
            },
            "workload": {"trace": {"path": str(folder / f"{run}.csv.gz")}},
        }
    )


def check(run: str, folder: Path = FOLDER) -> dict[str, Compared]:
    """Replay a run and compare what its clients saw."""
    resolved = resolve(scenario(run, folder))
    assert resolved.workload is not None
    return compare_with_measured(simulate(resolved).record, resolved.workload.measured)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=FOLDER, help="folder of the per-request files")
    folder = parser.parse_args().folder
    head = ("measured", "simulated", "error", "p50", "p99", "MAPE")
    print(f"{'run':40} {'metric':6} " + " ".join(f"{name:>9}" for name in head))
    for run in RUNS:
        for name, found in sorted(check(run, folder).items(), key=lambda item: list(METRICS).index(item[0])):
            errors = (found.mean_error, found.percentile_error(50), found.percentile_error(99))
            row = [f"{1e3 * values.mean():9.2f}" for values in (found.measured, found.simulated)]
            row += [f"{error:+9.1%}" for error in errors] + [f"{found.mape:9.1%}"]
            print(f"{run:40} {METRICS[name]:6} " + " ".join(row))
    print("means in ms as clients saw them; errors: simulated / measured - 1; MAPE: of single requests")


if __name__ == "__main__":
    main()
