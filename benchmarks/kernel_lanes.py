"""The lines of the kernel benchmark: each lane fitted on what a fit may see and judged on the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
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
from membound.calibrate.fit.base import errors
from membound.calibrate.fit.gemm import predict_gemm_us
from membound.calibrate.fit.moe import common_shapes, models_of, moe_regimes
from membound.calibrate.fitting import fit_table, with_fits
from membound.calibrate.localspread import spread_by_regime
from membound.calibrate.publicexperts import models_left_out
from membound.calibrate.publiclanes import DEVICES, SCORED_ROWS, PublicLane
from membound.calibrate.run import CalibrationRun
from membound.calibrate.screen import screen
from membound.calibrate.splits import part, train
from membound.calibrate.table import KernelTable, read_table
from membound.calibrate.uncertainty import Predictive
from membound.hwmodels.device import DeviceProfile, load_device
from membound.hwmodels.spreads import beyond_per_log
from membound.hwmodels.steptypes import chip_of

BARS: Final[dict[str, dict[str, dict[str, Bar]]]] = yaml.safe_load(
    Path(__file__).with_name("kernel_bars.yaml").read_text(encoding="utf-8")
)
NO_BAR: Final[Bar] = (None, None, None)
DENSE: Final = {
    "gemm": "gemm", "attn_decode": "decode_attention", "attn_prefill": "prefill_attention", "allreduce": "allreduce",
}  # fmt: skip
"""Operation -> family of the 16-bit kernels of a dense model."""


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


@dataclass(frozen=True, slots=True)
class Dense:
    """The 16-bit kernels of a dense model on one GPU, fitted.

    Attributes
    ----------
    gpu : of the tables
    device : profile with the lanes that were fitted
    lanes : rows of each lane, of the kernel that was fitted, judged ones too
    notes : lanes that were not fitted, each with the reason, and rows that are not judged
    """

    gpu: str
    device: DeviceProfile
    lanes: Mapping[str, KernelTable]
    notes: tuple[str, ...] = ()

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
        run = _fits(device, table)
        found = [f"{fit.family}/{fit.lane}" for fit in run.fits]
        rows = {name: _one_kernel(table.where(names == name)) for name in found}
        others = {name: int(np.sum(names == name)) - len(rows[name]) for name in found}
        notes = [f"not fitted: {reason}" for reason in run.skipped]
        notes += [f"not judged: {n} rows of other kernels in {name}" for name, n in others.items() if n]
        return cls(gpu, with_fits(device, run), rows, tuple(notes))

    def lines(self, baselines: bool = True) -> Iterator[Line]:
        """Yield every part of every lane."""
        for name, rows in self.lanes.items():
            if name.startswith("allreduce"):
                held, found = left_out(rows, rows["bytes"], self._by_the_rest)
                yield _line(self.gpu, name, judge("left-out size", held, found))
                continue
            beside = self._baselines(rows) if baselines else {}
            for each, mask in part(rows).items():
                chosen = rows.where(mask).sample(SCORED_ROWS, seed=1)
                if len(chosen):
                    found = judge(each, chosen, predicted(self.device, chosen))
                    yield _line(self.gpu, name, found, _mapes(beside, chosen))

    def _by_the_rest(self, seen: KernelTable, out: KernelTable) -> Predictive:
        return predicted(with_fits(self.device, _fits(self.device, seen)), out)

    def _baselines(self, rows: KernelTable) -> dict[str, Baseline]:
        seen, chip = train(rows), chip_of(self.device)
        return {name: made(seen, chip) for name, made in BASELINES.items()}


def _line(gpu: str, lane: str, judged: Judged, baselines: Mapping[str, float] | None = None) -> Line:
    bar = BARS.get(lane, {}).get(gpu, {}).get(judged.part, NO_BAR)
    return Line(gpu, lane, judged, bar, baselines or {})


def _fits(device: DeviceProfile, table: KernelTable) -> CalibrationRun:
    """Fit the training part of a table."""
    return fit_table(table, device, run_id="accuracy", source="public kernel tables")


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


def speed_up_line(source: Dense, target: Dense, software: str) -> Line:
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
    beside = {each: found[each][1]["mape"] for each in ("roofline", "no change")}
    return _line(target.gpu, f"{lane} from {source.gpu}", Judged("speed-up", n, n, form, {}), beside)


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
        held, found = models_left_out(lane, table)
        found = _as_published(held, found, lane.family)
        judged.append(judge("left-out model", held, found))
        judged.append(judge("common shapes", held, found, common_shapes(held)))
    for each in judged:
        yield Line(lane.gpu, f"{lane.family}/{lane.lane}", each, lane.bars.get(each.part, NO_BAR))


def _as_published(held: KernelTable, found: Predictive, family: str) -> Predictive:
    """Return predictions of left-out models with the spread that a published lane states: that of left-out models.

    The spread of a model's rows is that of the others, so that none sets its own width.
    """
    models, regimes = models_of(held), moe_regimes(held)
    ratio, sd = found.time / held.latency_us, np.empty(len(held))
    for model in np.unique(models):
        own = models == model
        spread = spread_by_regime(np.log(ratio[~own]), regimes[~own])
        sd[own] = [spread.get(str(regime), max(spread.values())) for regime in regimes[own]]
    return replace(found, sd=sd * (1.0 + beyond_per_log(family) * found.distance))
