"""Calibrate the device at hand, judge the fit on points it did not see, and check how a copy and a kernel share memory.

One table: per lane the points fitted and held out, errors of both, and how many held-out points lie inside their
90 % interval; then the overlap of a copy with a kernel that reads memory, measured and as the simulator shares it. With
a fourth argument a small real model serves two loads live for so many seconds, beside their prediction.
"""

from __future__ import annotations

import sys
from pathlib import Path

from membound.calibrate.device import device_of
from membound.calibrate.evaluate import evaluate
from membound.calibrate.fitting import fit_table, with_fits
from membound.calibrate.live import run_live
from membound.calibrate.measure import Backend, MeasuredRun, measure, read_run
from membound.calibrate.run import FIT, CalibrationRun
from membound.hwmodels.errors import MemboundError
from membound.kernels.results import Overlap
from membound.sim.device.sharing import fair_rates


def shared_seconds(overlap: Overlap) -> float:
    """Return how long kernel and copy take at once if they share bandwidth max-min fairly [s].

    What there is to share is the larger of the two rates reached alone.
    """
    alone = (overlap.kernel_s, overlap.copy_s)
    moved = (overlap.kernel_bytes, overlap.copy_bytes)
    bandwidth = max(b / t for b, t in zip(moved, alone, strict=True))
    loads = [min(1.0, b / t / bandwidth) for b, t in zip(moved, alone, strict=True)]
    rates = fair_rates([{"hbm": load} for load in loads], {"hbm": 1.0})
    ends = [t / rate for t, rate in zip(alone, rates, strict=True)]
    first = min(range(2), key=lambda i: ends[i])
    other = 1 - first
    return ends[first] + alone[other] - ends[first] * rates[other]


def table_of(run: MeasuredRun, fits: CalibrationRun) -> list[str]:
    """Return the table, one line a lane, and the overlap."""
    profile = with_fits(device_of(run.environment), fits)
    lines = [f"{'operation':<14} {'dtype':<10} {'lane':<28} unseen  MAPE  median    p90   bias  in 90 %"]
    for group in evaluate(profile, run.held_out).groups:
        figures = [group.mape, group.median_ape, group.p90_ape, group.bias, group.coverage_90]
        shown = ["    -" if each is None else f"{100 * each:6.1f}" for each in figures]
        lines.append(f"{group.op:<14} {group.dtype:<10} {group.lane:<28} {group.n:>6} " + "  ".join(shown))
    lines.append(
        f"unseen: points that no fit saw; errors in %, of {len(run.fit)} fitted and {len(run.held_out)} unseen"
    )
    if run.overlap is not None:
        both, told = run.overlap.both_s, shared_seconds(run.overlap)
        lines.append(
            f"a copy beside a kernel: {1e3 * run.overlap.kernel_s:.2f} and {1e3 * run.overlap.copy_s:.2f} ms alone, "
            f"{1e3 * both:.2f} ms at once; shared fairly {1e3 * told:.2f} ms ({100 * (told / both - 1):+.0f} %)"
        )
    return lines


def calibrated(device: str, budget_s: float, folder: Path, backend: Backend | None = None) -> list[str]:
    """Measure, fit, save, and return what to print."""
    summary = measure(device, budget_s, folder, backend=backend)
    run = read_run(folder)
    profile = device_of(run.environment)
    fits = fit_table(
        run.fit,
        profile,
        run_id=folder.name,
        source="timings of this machine",
        frozen=False,
        environment=dict(run.environment),
    )
    fits.save(folder / FIT)
    lines = [f"{profile.id}, torch lanes", summary.describe(), "", *table_of(run, fits), ""]
    lines += [f"not fitted: {reason}" for reason in fits.skipped]
    lines.append(f"to use it: membound calibrate publish {folder} --to {profile.id}_torch.yaml")
    return lines


def main() -> None:
    """Run it."""
    try:
        device, budget_s, folder = sys.argv[1], float(sys.argv[2]), Path(sys.argv[3])
        print("\n".join(calibrated(device, budget_s, folder)), flush=True)
        if len(sys.argv) > 4 and float(sys.argv[4]) > 0.0:
            print()
            print(run_live(device, float(sys.argv[4]), folder=folder / "live").describe())
    except MemboundError as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    main()
