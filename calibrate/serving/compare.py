"""A played run against what was measured of it: signed errors, distances, coverage, and the likely cause."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .play import Played, Seconds
from .run import LATENCIES, STATISTICS, ServedRun

ERRORS: tuple[str, ...] = (
    *(f"{latency}_{statistic}" for latency in LATENCIES for statistic in STATISTICS),
    "throughput", "sustainable_rate", "kv_peak", "preemptions",
)  # fmt: skip
"""What a run can be wrong in. All are simulated / measured - 1, but ``kv_peak`` and ``preemptions``: differences."""
WARM_UP = 0.2
"""How much more a p99 may be off than its mean before the start of the test is suspected."""


@dataclass(frozen=True, slots=True)
class RunErrors:
    """How far a run is off.

    Attributes
    ----------
    run : the run
    error : of ``ERRORS`` those known, signed [-]
    per_request : ``ttft_mape``, ``e2e_mape``, ``ks_ttft``, ``ks_e2e`` where there are per-request values [-]
    covered : whether the interval of a mean holds the measured one
    half_width : of that interval, over the simulated mean [-]
    level : how well the device's parameters are known
    cause : what the largest error likely comes from; empty where nothing is large
    measured : what was measured, of the table or of the file's requests [s], [1/s]
    """

    run: ServedRun
    error: Mapping[str, float]
    per_request: Mapping[str, float]
    covered: Mapping[str, bool]
    half_width: Mapping[str, float]
    level: str
    cause: str
    measured: Mapping[str, float] = field(default_factory=dict[str, float])


def compare(run: ServedRun, played: Played) -> RunErrors:
    """Compare a run with its simulation.

    Where the file holds requests, both sides are taken from them; else the table's figures are compared. The
    throughput of a saturated run is what the engine sustains; its latencies say how long the test was.
    """
    simulated, measured = _figures(run, played), dict(run.measured) | _of_requests(played)
    error = {
        name: simulated[name] / value - 1.0
        for name, value in measured.items()
        if name.rpartition("_")[0] in LATENCIES and name in simulated and value > 0
    }
    rate = next((name for name in ("requests_per_s", "output_tokens_per_s") if name in measured), None)
    if rate and measured[rate] > 0 and rate in simulated:
        error["throughput"] = simulated[rate] / measured[rate] - 1.0
        if run.saturated:
            error["sustainable_rate"] = error["throughput"]
    for name in ("kv_peak", "preemptions"):
        if name in measured and name in simulated:
            error[name] = simulated[name] - measured[name]
    covered, half_width = _coverage(
        _with_stay(run, simulated, played), _with_stay(run, measured, played), played, bool(run.saturated)
    )
    return RunErrors(
        run,
        error,
        _per_request(played),
        covered,
        half_width,
        played.level,
        _cause(run, played, error),
        measured,
    )


def _figures(run: ServedRun, played: Played) -> dict[str, float]:
    """Return what the simulator says, under the names of ``ServedRun.measured``."""
    found = dict(played.figures)
    for name, values in played.simulated.items():
        found |= _statistics(name, values)
    if run.tpot_derived and played.answer_tokens > 1:
        found["tpot_mean"] = (found["e2e_mean"] - found["ttft_mean"]) / (played.answer_tokens - 1)
    if run.label.kind == "points" and run.concurrency:
        stay_s = found["ttft_mean"] + (played.answer_tokens - 1) * found["tpot_mean"]
        found["output_tokens_per_s"] = run.concurrency * played.answer_tokens / stay_s
        del found["requests_per_s"]
    return found


def _of_requests(played: Played) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, values in played.measured.items():
        found |= _statistics(name, values)
    return found


def _statistics(name: str, values: Seconds) -> dict[str, float]:
    known = values[np.isfinite(values)]
    if not len(known):
        return {}
    p50, p99 = np.percentile(known, [50, 99]).tolist()
    return {f"{name}_mean": float(known.mean()), f"{name}_p50": p50, f"{name}_p99": p99}


def _per_request(played: Played) -> dict[str, float]:
    found: dict[str, float] = {}
    for name in ("ttft", "e2e"):
        if name not in played.measured:
            continue
        real, ours = played.measured[name], played.simulated[name]
        known = np.isfinite(real) & np.isfinite(ours) & (real > 0)
        found[f"{name}_mape"] = float(np.abs(ours[known] / real[known] - 1.0).mean())
        found[f"ks_{name}"] = ks_distance(real[known], ours[known])
    return found


def ks_distance(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    """Return the largest distance between two empirical distributions (Kolmogorov, Smirnov) [-].

    >>> ks_distance(np.array([1.0, 2.0]), np.array([1.0, 3.0]))
    0.5
    """
    both = np.concatenate([first, second])
    shares = [
        np.searchsorted(np.sort(each), both, side="right") / max(len(each), 1) for each in (first, second)
    ]
    return float(np.abs(shares[0] - shares[1]).max())


def _coverage(
    simulated: Mapping[str, float], measured: Mapping[str, float], played: Played, saturated: bool
) -> tuple[dict[str, bool], dict[str, float]]:
    """Return which figures their intervals hold: means below saturation, above it throughput.

    Below it throughput is the load's; a closed loop's throughput is its users over their E2E.
    """
    covered: dict[str, bool] = {}
    half_width: dict[str, float] = {}
    for name, (low, high) in played.interval.items():
        if name in measured and name in simulated and saturated == name.endswith("_per_s"):
            covered[name] = low * simulated[name] <= measured[name] <= high * simulated[name]
            half_width[name] = (high - low) / 2
    return covered, half_width


def _with_stay(run: ServedRun, figures: Mapping[str, float], played: Played) -> dict[str, float]:
    """Return figures with the mean E2E of a point, TTFT + (answer - 1) TPOT, which its table does not state."""
    found = dict(figures)
    if run.label.kind == "points" and {"ttft_mean", "tpot_mean"} <= found.keys():
        found["e2e_mean"] = found["ttft_mean"] + (played.answer_tokens - 1) * found["tpot_mean"]
    return found


def _cause(run: ServedRun, played: Played, error: Mapping[str, float], large: float = 0.08) -> str:
    """Say what a run's errors most likely come from, by their pattern; the first that fits counts."""
    ttft, tpot = error.get("ttft_mean", 0.0), error.get("tpot_mean", 0.0)
    e2e, rate = error.get("e2e_mean", tpot), error.get("throughput", 0.0)
    worst = max((abs(error[name]) for name in error if name.endswith(("_mean", "throughput"))), default=0.0)
    tail = max((abs(error[name]) for name in error if name.endswith("_p99")), default=0.0)
    if worst < large and tail < large + WARM_UP:
        return ""
    if worst < large:
        return "the tail alone: cold caches and start-up at the beginning of the test, or another arrival law"
    if played.borrowed:
        return "step times, batch limits and scheduler of this engine are borrowed from vLLM"
    if run.saturated and abs(rate) < large:
        return "saturated: latencies follow the length of the line, not the engine"
    if played.state[0] == "unstable" and not run.saturated:
        return "the simulated engine is saturated where the real one was not: too little capacity"
    if played.level.startswith("transferred"):
        return "this device was never timed: its parameters are a relative's"
    if abs(ttft) >= large and abs(tpot) < large / 2:
        return "the first token alone: client and server time around the engine, or prefix hits"
    if tpot * e2e > 0 and abs(tpot) >= large / 2:
        sampler = "; a sampler with top-p or top-k, if the server's default asks for one" if tpot < 0 else ""
        return f"the decode step is too {'short' if tpot < 0 else 'long'}: host time or kernels{sampler}"
    return "the load: arrivals, lengths or shared prompts are not as described"
