"""How well experts, latent attention and low-precision linears are predicted on rows that no fit has seen.

    python benchmarks/kernel_accuracy_moe.py [--tables ../shared/measured/kernels] [--only h100] [--quick]

Experts are judged by leaving one model out at a time; latent attention by head counts (16 and 64) and contexts above
2048; linears by the frozen unseen widths and by more than 2048 rows. Figures are MAPE / median / 90th percentile
(bias) in %; beside them the datasheet roofline of the same rows is not repeated: it errs by 40-90 % on them.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from membound.calibrate.eager import SCREENED, without_eager
from membound.calibrate.publiclanes import DEVICES, PUBLIC_LANES, PublicLane, Score, left_out_models, scores
from membound.calibrate.table import read_table

TABLES = Path(__file__).parents[2] / "shared" / "measured" / "kernels"


def text(score: Score) -> str:
    """Return one part's errors in per cent."""
    found = score.errors
    sizes = " / ".join(f"{100 * found[name]:.1f}" for name in ("mape", "median_ape", "p90_ape"))
    return f"{sizes} ({100 * found['bias']:+.1f})"


def against(score: Score, bars: tuple[float | None, float | None, float | None] | None) -> str:
    """Return the bars with what misses them, empty where there are none."""
    if bars is None or all(bar is None for bar in bars):
        return ""
    values = [100 * score.errors[name] for name in ("mape", "median_ape", "p90_ape")]
    missed = [bar is not None and value > bar for value, bar in zip(values, bars, strict=True)]
    shown = " / ".join("-" if bar is None else f"{bar:g}" for bar in bars)
    return f"bar {shown}: " + ("MISSED" if any(missed) else "met")


def lane_report(lane: PublicLane, folder: Path, *, quick: bool, models: bool) -> list[str]:
    """Fit a lane with what a fit may see and return one line a part."""
    started = time.perf_counter()
    table, screened = lane.read(folder)
    fit = lane.fit(lane.parts(table)["train"])
    found = list(scores(lane, table, fit))
    if lane.op == "moe":
        rows = {"rows": 600, "scored": 120} if quick else {}
        found += [
            each for each in left_out_models(lane, table, **rows) if models or not each.part[0].isdigit()
        ]
    lines = [f"{lane.name}: {len(table)} rows, {fit.n} fitted, {time.perf_counter() - started:.0f} s"]
    lines += [f"    {line}" for line in screened]
    for each in found:
        lines.append(
            f"    {each.part:<24} n {each.n:>6}  {text(each):<28} {against(each, lane.bars.get(each.part))}"
        )
    return lines


def eager_report(folder: Path) -> list[str]:
    """Return the lanes of each GPU and operation whose floor is host time; none of them is fitted."""
    return [
        f"{gpu}: {line}"
        for gpu in DEVICES
        for line in without_eager(read_table(folder / f"kernels_aic_{gpu}.parquet", op=SCREENED))[1]
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the errors of every lane."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tables", type=Path, default=TABLES, help="folder of kernels_aic_*.parquet")
    parser.add_argument("--only", default="", help="part of the lane names to run (h100_sxm/moe/vllm)")
    parser.add_argument("--quick", action="store_true", help="half the rows in each fold")
    parser.add_argument("--models", action="store_true", help="also print every left-out model")
    chosen = parser.parse_args(arguments)
    for line in eager_report(chosen.tables):
        print(line, flush=True)
    for lane in PUBLIC_LANES:
        if chosen.only in lane.name:
            print(
                "\n".join(lane_report(lane, chosen.tables, quick=chosen.quick, models=chosen.models)),
                flush=True,
            )


if __name__ == "__main__":
    main()
