"""Playing a served run: the simulator's latencies of the same requests, as its clients would have seen them."""

from __future__ import annotations

import csv
import gzip
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ...hwmodels.errors import MemboundError
from ...sim.books.record import RunRecord
from ...sim.draws import run_draws
from ...sim.metrics import metrics
from ...sim.metrics.latency import completed
from ...sim.metrics.stability import stability
from ...sim.run import simulate
from ...sim.scenario.resolve import ResolvedScenario, resolve
from ...sim.workload.workload import ClosedLoopLoad, Workload
from .run import ServedRun, Skipped
from .takeup import came_before, taken_up_ns

Seconds = NDArray[np.float64]
Server = Callable[[ResolvedScenario], ResolvedScenario]
_NAMES = ("ttft", "tpot", "e2e")
FEWEST_ROUNDS = 3
NINE_TENTHS = 1.645
"""Standard deviations on either side of the mean that hold nine tenths of a normal distribution."""
DRAWN_REQUESTS = 400
"""Requests that draws replay of a run; an interval is what they make of the same requests' figures."""


@dataclass(frozen=True, slots=True)
class Played:
    """What came of playing a run.

    Attributes
    ----------
    simulated : ``ttft``, ``tpot``, ``e2e`` of each request as its client saw it, shape (n,) [s]
    measured : the same that the file of requests holds, shape (n,) [s]; empty where there is none
    figures : ``requests_per_s``, ``output_tokens_per_s``, ``kv_peak``, ``preemptions``
    answer_tokens : mean length of an answer [tokens]
    level : how well the device's parameters are known
    borrowed : whether the engine's step times are another's
    state : whether the simulated run was steady, and why not
    interval : ``ttft_mean``, … -> (low, high) over the point run's figure [-]; empty without draws
    lanes : how well each kernel family that the run took is known
    """

    simulated: Mapping[str, Seconds]
    measured: Mapping[str, Seconds]
    figures: Mapping[str, float]
    answer_tokens: float
    level: str
    borrowed: bool
    state: tuple[str, str]
    interval: Mapping[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])
    lanes: Mapping[str, str] = field(default_factory=dict[str, str])


def play(run: ServedRun, draws: int = 0, server: Server | None = None) -> Played:
    """Simulate a run.

    Parameters
    ----------
    run : the run
    draws : how many draws of what is not known of the hardware make its interval; 0: none
    server : puts another device or engine in the place of the scenario's

    Raises
    ------
    MemboundError : it cannot be simulated, in one line
    """
    resolved = resolve(run.scenario)
    resolved = server(resolved) if server else resolved
    load = resolved.workload
    assert load is not None
    if run.intended and run.concurrency:
        load = _as_intended(load, run.scenario.workload, run.concurrency)
        resolved = replace(resolved, workload=load)
    record = simulate(resolved, keep_steps=run.taken_up).record
    arrival_ns = record.requests["arrival_ns"]
    if run.taken_up:
        resolved = replace(resolved, workload=came_before(load, record))
        record = simulate(resolved, keep_steps=True).record
        arrival_ns = taken_up_ns(record)
    served = np.flatnonzero(completed(record))
    served = served[served >= run.skip_first]
    if not len(served):
        raise MemboundError("the simulator completed none of its requests")
    state, overhead_s = stability(record), _overhead_s(run, resolved)
    return Played(
        simulated={name: values[served] for name, values in _latencies(record, arrival_ns, overhead_s)},
        measured=_measured(load, served),
        figures=_figures(record, overhead_s),
        answer_tokens=float(record.requests["output_tokens"][served].mean()),
        level=str(record.provenance.get("level", "")),
        borrowed=resolved.engine.scope != "full",
        state=(state.state, state.reason),
        interval=_interval(resolved, record, draws, run.unstated_spread) if draws else {},
        lanes=record.provenance.get("lanes", {}),
    )


def play_all(
    runs: Sequence[ServedRun], *, jobs: int = 1, draws: int = 0, server: Server | None = None
) -> Iterator[tuple[ServedRun, Played | Skipped]]:
    """Yield every run with what came of it, in order; runs of the same load and server are played once.

    Parameters
    ----------
    runs : the runs
    jobs : processes
    draws, server : as in ``play``
    """
    first: dict[str, int] = {}
    same = [first.setdefault(_key(run), at) for at, run in enumerate(runs)]
    distinct = [runs[at] for at in dict.fromkeys(same)]
    if jobs == 1:
        outcomes: Any = (_attempt(run, draws, server) for run in distinct)
    else:
        import joblib  # pyright: ignore[reportMissingTypeStubs]

        library = cast("Any", joblib)
        tasks = (library.delayed(_attempt)(run, draws, server) for run in distinct)
        outcomes = library.Parallel(n_jobs=jobs, return_as="generator", batch_size=1)(tasks)
    known: dict[int, Played | str] = {}
    for run, at in zip(runs, same, strict=True):
        if at not in known:
            known[at] = next(outcomes)
        outcome = known[at]
        yield run, Skipped(run.label, outcome) if isinstance(outcome, str) else outcome


def _attempt(run: ServedRun, draws: int, server: Server | None) -> Played | str:
    """Play a run, or say in one line why it cannot be; no row of a table may end the others' validation."""
    try:
        return play(run, draws, server)
    except MemboundError as error:
        return " ".join(str(error).split())
    except Exception as error:
        return f"simulation failed: {type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _key(run: ServedRun) -> str:
    scenario = run.scenario.to_dict() | {"name": ""}
    client = [run.client_overhead_s, run.skip_first, run.intended, run.concurrency, run.taken_up]
    return json.dumps([scenario, client, dict(run.unstated_spread)])


def _overhead_s(run: ServedRun, resolved: ResolvedScenario) -> float:
    if run.client_overhead_s is not None:
        return run.client_overhead_s
    return resolved.engine.client_overhead_s if resolved.engine.scope == "full" else 0.0


def _latencies(
    record: RunRecord, arrival_ns: NDArray[np.int64], overhead_s: float
) -> Iterator[tuple[str, Seconds]]:
    """Yield each latency of all requests, from when they count as arrived [s]; TPOT of one token is NaN."""
    requests = record.requests
    first = (requests["first_token_ns"] - arrival_ns) / 1e9 + overhead_s
    last = (requests["last_token_ns"] - arrival_ns) / 1e9 + overhead_s
    gaps = requests["output_tokens"] - 1.0
    yield "ttft", first
    yield "tpot", np.divide(last - first, gaps, out=np.full(len(gaps), np.nan), where=gaps > 0)
    yield "e2e", last


def _measured(load: Workload, served: NDArray[np.intp]) -> dict[str, Seconds]:
    found = {name: load.measured[f"{name}_s"][served] for name in _NAMES if f"{name}_s" in load.measured}
    return {name: values for name, values in found.items() if np.isfinite(values).any()}


def _figures(record: RunRecord, overhead_s: float) -> dict[str, float]:
    """Return rates over the client's time, from sending the first request to its last token, and the pool's figures."""
    longer = (record.duration_s + overhead_s) / record.duration_s if record.duration_s > 0 else 1.0
    rates = metrics.throughput(record)
    found = {
        name: value / longer
        for name, value in rates.items()
        if isinstance(value, int | float) and name.endswith("_per_s")
    } | {
        "kv_peak": metrics.kv(record)["peak_usage"],
        "preemptions": metrics.request_counts(record)["preemptions"],
    }
    return {name: float(value) for name, value in found.items() if isinstance(value, int | float)}


def _as_intended(load: Workload, spec: Any, places: int) -> Workload:
    """Return the load as its client meant to send it: at the drawn times, with so many in flight at most."""
    path = Path(spec.trace.path)
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    meant = np.sort(np.array([float(row.get("intended_arrival_s") or "nan") for row in rows]))
    if len(meant) != len(load) or not np.isfinite(meant).all():
        return load
    times = np.rint((meant - meant[0]) * 1e9).astype(np.int64)
    return replace(load, arrival_ns=times, closed_loop=ClosedLoopLoad(places, keeps_times=True))


def _interval(
    resolved: ResolvedScenario, record: RunRecord, draws: int, unstated: Mapping[str, float]
) -> dict[str, tuple[float, float]]:
    """Return the interval of each mean over the figure of the point run, widened by what is not stated of the run [-].

    Approximation: draws and point replay the first ``DRAWN_REQUESTS`` only (a closed loop at least three rounds of its
    users), so a line that takes longer than that to build up is not in the width.
    """
    from ...sim.draws import headline

    load = resolved.workload
    assert load is not None
    users = load.closed_loop.concurrency if load.closed_loop else 0
    short = load.first(max(DRAWN_REQUESTS, FEWEST_ROUNDS * users))
    if len(short) < len(load):
        resolved = replace(resolved, workload=short)
        record = simulate(resolved).record
    point, found = headline(record), run_draws(resolved, draws, jobs=1).interval()
    names = {f"{name}_mean": f"latency.{name}_s.mean" for name in _NAMES}
    names |= {name: f"throughput.{name}" for name in ("requests_per_s", "output_tokens_per_s")}
    return {
        ours: widened(
            found[name][0] / point[name],
            found[name][1] / point[name],
            unstated.get("ttft" if ours == "ttft_mean" else "tpot", 0.0),
        )
        for ours, name in names.items()
        if name in found and point.get(name)
    }


def widened(low: float, high: float, spread: float) -> tuple[float, float]:
    """Return an interval of a ratio with an independent spread of its logarithm added to each side.

    >>> widened(0.9, 1.1, 0.0)
    (0.9, 1.1)
    """
    if spread <= 0.0:
        return low, high
    tail = NINE_TENTHS * spread
    return (
        math.exp(-math.hypot(min(math.log(low), 0.0), tail)),
        math.exp(math.hypot(max(math.log(high), 0.0), tail)),
    )
