"""How accurately kernel times are predicted on rows that no fit has seen, beside what a simpler model would reach.

Every lane is fitted on the training part of the frozen splits and judged on the rest: GEMM on weight shapes that
the fit did not hold and on more rows than it held, attention on other head counts and longer contexts, all-reduce
with one size left out at a time, experts with one model left out. Dense vLLM lanes stand beside four baselines that
see the same training rows: the datasheet roofline, three fitted parameters, a random forest, and interpolation on
the grid of the rows (outside it with the slope of the last factor of two). Then GEMM is fitted on one GPU and only
the datasheet swapped: the error is that of the predicted speed-up.

Minutes on two cores: dense 3, linear 4, latent 1, moe 60 (not run unless asked for); --all-lanes 30.
Errors in %, predicted/measured - 1. Exits with 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import yaml
from membound.benchmarks.baselines import BASELINES, Baseline, roofline_us
from membound.calibrate.accuracy import (
    Bar,
    Judged,
    judge,
    lane_predicted,
    lanes_of,
    left_out,
    predicted,
    speed_up_errors,
)
from membound.calibrate.eager import SCREENED, without_eager
from membound.calibrate.fit.base import errors
from membound.calibrate.fit.gemm import predict_gemm_us
from membound.calibrate.fit.moe import common_shapes, models_of
from membound.calibrate.fitting import fit_table, with_fits
from membound.calibrate.publiclanes import (
    DEVICES,
    EXPERT_LANES,
    FOLD_ROWS,
    FOLD_SCORED,
    LATENT_LANES,
    LINEAR_LANES,
    SCORED_ROWS,
    PublicLane,
)
from membound.calibrate.screen import screen
from membound.calibrate.splits import part, train
from membound.calibrate.table import KernelTable, read_table
from membound.calibrate.uncertainty import Predictive
from membound.hwmodels.device import DeviceProfile, load_device
from membound.hwmodels.steptypes import chip_of

TABLES: Final = Path(__file__).parents[2] / "shared" / "measured" / "kernels"
BARS: Final[dict[str, dict[str, dict[str, Bar]]]] = yaml.safe_load(
    Path(__file__).with_name("kernel_bars.yaml").read_text(encoding="utf-8")
)
NO_BAR: Final[Bar] = (None, None, None)
DENSE: Final = {
    "gemm": "gemm", "attn_decode": "decode_attention", "attn_prefill": "prefill_attention", "allreduce": "allreduce",
}  # fmt: skip
"""Operation -> family of the 16-bit kernels of a dense model."""
PUBLIC: Final = {"linear": LINEAR_LANES, "latent": LATENT_LANES, "moe": EXPERT_LANES}
FAMILIES: Final = ("dense", "linear", "latent")
TRANSFERS: Final = (("a100_sxm", "h100_sxm"), ("h100_sxm", "a100_sxm"), ("h100_sxm", "b200_sxm"))


@dataclass(frozen=True, slots=True)
class Line:
    """One part of one lane: errors, the bar they are held against, MAPE of the baselines [-]."""

    gpu: str
    lane: str
    judged: Judged
    bar: Bar = NO_BAR
    baselines: Mapping[str, float] = field(default_factory=dict[str, float])

    @property
    def missed(self) -> list[str]:
        """What misses the bar, by name."""
        return self.judged.misses(self.bar)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {**asdict(self), "missed": self.missed}

    def text(self) -> str:
        """Return the line of the table."""
        found, covered = self.judged.errors, self.judged.covered
        cells = [f"{self.gpu:<20} {self.lane:<26} {self.judged.part:<15} {self.judged.n:>6}"]
        cells += [_percent(found[name]) for name in ("mape", "median_ape", "p90_ape", "bias")]
        cells += [
            _percent(covered.get(name))
            for name in ("coverage_90", "coverage_90_outside", "median_half_width")
        ]
        cells += [_percent(self.baselines.get(name)) for name in (*BASELINES, "no change")]
        return " ".join(cells) + "  " + self._verdict()

    def _verdict(self) -> str:
        if self.bar == NO_BAR:
            return ""
        limits = "/".join("-" if limit is None else f"{limit:g}" for limit in self.bar)
        return f"{limits} " + (f"MISSED: {', '.join(self.missed)}" if self.missed else "met")


def _percent(share: float | None) -> str:
    return f"{'-' if share is None or np.isnan(share) else format(100.0 * share, '.1f'):>6}"


HEAD: Final = (
    f"{'gpu':<20} {'lane':<26} {'part':<15} {'rows':>6} {'MAPE':>6} {'median':>6} {'p90':>6} {'bias':>6}"
    f" {'in 90':>6} {'outs.':>6} {'width':>6} {'roofl.':>6} {'3 par.':>6} {'forest':>6} {'grid':>6} {'same':>6}"
    "  bar: MAPE/median/p90"
)
FOOT: Final = (
    "in 90, outs.: rows inside their 90 % interval, in the fitted range and outside; width: median half of it\n"
    "roofl. to grid: MAPE of the baselines; same: of a speed-up of 1\n"
    "held against the bars too, where there is one: 85-95 % in range, at least 80 % outside, width at most 2.1 x MAPE"
)


@dataclass(frozen=True, slots=True)
class Dense:
    """The 16-bit kernels of a dense model on one GPU, fitted.

    Attributes
    ----------
    gpu : of the tables
    device : profile with the lanes that were fitted
    lanes : rows of each lane, of the kernel that was fitted, judged ones too
    """

    gpu: str
    device: DeviceProfile
    lanes: Mapping[str, KernelTable]

    @classmethod
    def of(cls, gpu: str, table: KernelTable, lanes: Iterable[str] | None = None) -> Dense:
        """Fit a table on its training part.

        Parameters
        ----------
        lanes : ``family/lane`` to fit; default: all
        """
        device = load_device(DEVICES[gpu])
        table = screen(table, device).table
        names = lanes_of(table)
        kept = (
            np.isin(names.astype(str), list(lanes)) if lanes is not None else np.ones(len(table), dtype=bool)
        )
        table, names = table.where(kept), names[kept]
        rows = {name: _one_kernel(table.where(names == name)) for name in dict.fromkeys(names.tolist())}
        return cls(gpu, fitted(device, table), rows)

    def lines(self, baselines: bool = True) -> Iterator[Line]:
        """Yield every part of every lane."""
        for name, rows in self.lanes.items():
            bars = BARS.get(name, {}).get(self.gpu, {})
            if name.startswith("allreduce"):
                held, found = left_out(
                    rows, rows["bytes"], lambda seen, out: predicted(fitted(self.device, seen), out)
                )
                yield Line(
                    self.gpu, name, judge("left-out size", held, found), bars.get("left-out size", NO_BAR)
                )
                continue
            beside = self._baselines(rows) if baselines else {}
            for each, mask in part(rows).items():
                chosen = rows.where(mask).sample(SCORED_ROWS, seed=1)
                if len(chosen):
                    found = judge(each, chosen, predicted(self.device, chosen))
                    yield Line(self.gpu, name, found, bars.get(each, NO_BAR), _mapes(beside, chosen))

    def _baselines(self, rows: KernelTable) -> dict[str, Baseline]:
        seen, chip = train(rows), chip_of(self.device)
        return {name: made(seen, chip) for name, made in BASELINES.items()}


def fitted(device: DeviceProfile, table: KernelTable) -> DeviceProfile:
    """Return a device with the lanes that the training part of a table gives."""
    return with_fits(device, fit_table(table, device, run_id="accuracy", source="public kernel tables"))


def _one_kernel(rows: KernelTable) -> KernelTable:
    """Keep the kernel that most rows a fit may see took: it is the one that is fitted."""
    (kernel, _), *_ = Counter(train(rows)["kernel_source"].tolist()).most_common(1) or [("", 0)]
    return rows.only(kernel_source=kernel)


def _mapes(baselines: Mapping[str, Baseline], rows: KernelTable) -> dict[str, float]:
    return {name: errors(model(rows) / rows.latency_us)["mape"] for name, model in baselines.items()}


def dense_table(folder: Path, gpu: str, software: Sequence[str]) -> KernelTable:
    """Read the 16-bit rows of dense operations."""
    path = folder / f"kernels_aic_{gpu}.parquet"
    return read_table(path, op=list(DENSE), framework=software, dtype="bfloat16")


def speed_ups(source: Dense, target: Dense, software: str) -> Line:
    """Return how well GEMM speed-ups are predicted when only the datasheet is swapped."""
    lane = f"gemm/{software}"
    one, other = ((chip_of(each.device), each.lanes[lane]) for each in (source, target))
    params = source.device.lane("gemm", software).params
    models = {
        "form": lambda chip, rows: predict_gemm_us(chip, params, rows),
        "roofline": roofline_us,
        "no change": lambda chip, rows: np.ones(len(rows)),
    }
    found = {name: speed_up_errors(one, other, model, rows=SCORED_ROWS) for name, model in models.items()}
    n, form = found["form"]
    name = f"{source.gpu} -> {target.gpu}"
    bar = BARS["speed-up"].get(name, {}).get("matched", NO_BAR)
    beside = {each: found[each][1]["mape"] for each in ("roofline", "no change")}
    return Line(name, f"{lane} speed-up", Judged("matched", n, n, form, {}), bar, beside)


def public_lines(lane: PublicLane, table: KernelTable) -> Iterator[Line]:
    """Yield every part of a lane of experts, latent attention or low-precision linears."""
    parts = lane.parts(table)
    fit = lane.fit(parts["train"])
    judged = [
        judge(name, chosen, lane_predicted(lane, fit, chosen))
        for name, rows in parts.items()
        if len(chosen := rows.sample(SCORED_ROWS, seed=1))
    ]
    if lane.op == "moe":

        def fold(seen: KernelTable, out: KernelTable) -> Predictive:
            return lane_predicted(lane, lane.fit(seen, rows=FOLD_ROWS, evaluations=10), out)

        held, found = left_out(table, models_of(table), fold, FOLD_SCORED)
        judged += [
            judge("left-out model", held, found),
            judge("common shapes", held, found, common_shapes(held)),
        ]
    name = f"{lane.family}/{lane.lane}"
    for each in judged:
        yield Line(lane.gpu, name, each, lane.bars.get(each.part, NO_BAR))


def eager_lines(folder: Path, gpus: Iterable[str]) -> list[str]:
    """Return the lanes of each GPU whose floor is host time; none of them is fitted."""
    return [
        f"{gpu}: {line}"
        for gpu in gpus
        for line in without_eager(read_table(folder / f"kernels_aic_{gpu}.parquet", op=SCREENED))[1]
    ]


def all_lines(chosen: argparse.Namespace) -> Iterator[Line]:
    """Yield the lines of everything that was chosen, in the order in which they are found."""
    if "dense" in chosen.family:
        software = chosen.software or ["vllm"]
        lanes = (
            None
            if chosen.all_lanes
            else [f"{family}/{name}" for family in DENSE.values() for name in software]
        )
        dense: dict[str, Dense] = {}
        for gpu in chosen.gpu:
            dense[gpu] = Dense.of(gpu, dense_table(chosen.folder, gpu, software), lanes)
            yield from dense[gpu].lines(chosen.baselines)
        for source, target in TRANSFERS:
            if source in dense and target in dense:
                yield from (speed_ups(dense[source], dense[target], name) for name in software)
    for family, lanes in PUBLIC.items():
        for lane in lanes if family in chosen.family else ():
            if lane.gpu in chosen.gpu and lane.framework in (chosen.software or [lane.framework]):
                yield from public_lines(lane, lane.read(chosen.folder)[0])


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the errors of every lane, and fail if one misses its bar."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("folder", nargs="?", type=Path, default=TABLES, help="folder of kernels_aic_*.parquet")
    add("--gpu", nargs="+", choices=list(DEVICES), default=list(DEVICES))
    add(
        "--family", nargs="+", choices=("dense", *PUBLIC), default=list(FAMILIES), help="default: all but moe"
    )
    add("--software", nargs="+", help="default: vllm for dense, all for the others")
    add("--all-lanes", action="store_true", help="dense: every head layout, head size, window and KV width")
    add("--baselines", action=argparse.BooleanOptionalAction, default=True)
    add("--check", action=argparse.BooleanOptionalAction, default=True, help="exit with 1 if a bar is missed")
    add("--format", choices=("table", "json"), default="table")
    chosen = parser.parse_args(arguments)
    shown = chosen.format == "table"
    if shown:
        print(HEAD, flush=True)
    lines: list[Line] = []
    for line in all_lines(chosen):
        lines.append(line)
        if shown:
            print(line.text(), flush=True)
    missed = [line for line in lines if line.missed]
    if shown:
        held = sum(line.bar != NO_BAR for line in lines)
        print(
            "\n".join([FOOT, *eager_lines(chosen.folder, chosen.gpu), f"{len(missed)} of {held} bars missed"])
        )
    else:
        print(json.dumps([line.to_dict() for line in lines], indent=1))
    if missed and chosen.check:
        sys.exit(1)


if __name__ == "__main__":
    main()
