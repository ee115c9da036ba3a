"""How long a kernel takes: median and spread of repeats, with cold caches.

Every repeat walks through several sets of inputs that together exceed the last-level cache four times, as a
serving step's weights and cache do. CUDA: events around the replay of a captured graph where capture works, else
around plain launches. CPU: the time that the one computing thread spent on the processor, so that being set aside
for a neighbour does not count; several threads: wall time.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Sequence
from itertools import cycle, islice

import torch

from .call import Call
from .results import Timing

COLD = 4.0
"""Input sets rotate through so many times the last-level cache [-]."""
MOST_SETS = 64
"""Approximation: kernels of less than 1/16 of the cache are timed half warm; their bytes take less than their t0."""
LEAST_REPEATS = 10
_MOST_REPEATS = 200
_LEAST_SECONDS = {"cpu": 100e-6, "cuda": 1e-3}
"""A repeat calls the kernel so often that the clock's own cost disappears [s]."""
_WARM_SECONDS = {"cpu": 2e-3, "cuda": 30e-3}
_MOST_INNER = 256


def time_calls(
    calls: Sequence[Call], device: torch.device, budget_s: float = 0.1, *, captured: bool = True
) -> Timing:
    """Time one kernel on several sets of inputs in turn.

    Parameters
    ----------
    calls : the same kernel on different inputs
    device : where it runs
    budget_s : repeats go on for so long, but there are at least ``LEAST_REPEATS`` of them [s]
    captured : CUDA: replay a graph of the calls where they can be captured; else launch each
    """
    runs = [call.run for call in calls]
    collecting = gc.isenabled()
    gc.disable()
    try:
        with torch.inference_mode():
            if device.type == "cuda":
                return _on_gpu(runs, device, budget_s, captured)
            return _on_cpu(runs, budget_s)
    finally:
        if collecting:
            gc.enable()


def _on_cpu(runs: Sequence[Callable[[], object]], budget_s: float) -> Timing:
    single = torch.get_num_threads() == 1
    clock = time.thread_time_ns if single else time.perf_counter_ns
    turn = cycle(runs)
    once = _warm(turn, clock, _WARM_SECONDS["cpu"])
    inner = _inner(once, "cpu")
    samples: list[float] = []
    started = time.perf_counter()
    while _more(samples, started, budget_s):
        batch = list(islice(turn, inner))
        before = clock()
        for run in batch:
            run()
        samples.append((clock() - before) * 1e-9 / inner)
    return summarise(samples, inner, "thread" if single else "wall")


def _on_gpu(
    runs: Sequence[Callable[[], object]], device: torch.device, budget_s: float, captured: bool
) -> Timing:
    turn = cycle(runs)

    def clock() -> int:
        torch.cuda.synchronize(device)
        return time.perf_counter_ns()

    with torch.cuda.device(device):
        inner = _inner(_warm(turn, clock, _WARM_SECONDS["cuda"]), "cuda")
        batch = list(islice(turn, inner))
        graph = _captured(batch) if captured else None
        launch = graph.replay if graph is not None else lambda: [run() for run in batch]
        launch()
        torch.cuda.synchronize(device)
        samples: list[float] = []
        started = time.perf_counter()
        while _more(samples, started, budget_s):
            before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            before.record()
            launch()
            after.record()
            after.synchronize()
            samples.append(before.elapsed_time(after) * 1e-3 / inner)
    return summarise(samples, inner, "cuda_graph" if graph is not None else "cuda_events")


def _captured(batch: Sequence[Callable[[], object]]) -> torch.cuda.CUDAGraph | None:
    """Return a graph of the calls, or None where one of them cannot be captured."""
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            for run in batch:
                run()
    except RuntimeError:
        torch.cuda.synchronize()
        return None
    return graph


def _warm(turn: cycle[Callable[[], object]], clock: Callable[[], int], seconds: float) -> float:
    """Run until ``seconds`` have passed, at least twice; return the time of the fastest call [s]."""
    best, started, count = math.inf, time.perf_counter(), 0
    while count < 2 or (time.perf_counter() - started < seconds and count < _MOST_REPEATS):
        before = clock()
        next(turn)()
        best = min(best, (clock() - before) * 1e-9)
        count += 1
    return max(best, 1e-9)


def _inner(once: float, kind: str) -> int:
    return max(1, min(_MOST_INNER, math.ceil(_LEAST_SECONDS[kind] / once)))


def _more(samples: list[float], started: float, budget_s: float) -> bool:
    if len(samples) < LEAST_REPEATS:
        return True
    return len(samples) < _MOST_REPEATS and time.perf_counter() - started < budget_s


def summarise(samples: Sequence[float], inner: int, clock: str) -> Timing:
    """Return median and spread of the repeats.

    >>> summarise([1.0, 2.0, 3.0, 4.0], 1, "wall").seconds
    2.5
    """
    low, middle, high = statistics.quantiles(samples, n=4)
    return Timing(middle, 0.5 * (high - low) / middle, len(samples), inner, clock)
