"""A copy beside a kernel that reads memory: how the two share its bandwidth.

CUDA: two streams. CPU: two threads, each on a core of its own where there are two.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable

import torch

from .devices import facts
from .results import Overlap

_ROUNDS = 7
_SECONDS = {"cpu": 0.02, "cuda": 0.005}
"""Length of each of the two, alone [s]."""
_BEYOND_CACHE = 6.0


def measure_overlap(device: torch.device) -> Overlap:
    """Time a matrix-vector product, a copy of about the same length, and both at once."""
    known = facts(device)
    side = int((min(_BEYOND_CACHE * known.cache_bytes, 0.05 * known.memory_bytes) / 4.0) ** 0.5) // 64 * 64
    w = torch.randn((side, side), device=device)
    x = torch.randn((side, 1), device=device)
    source = torch.randn(side * side, device=device)
    out, target = torch.empty((side, 1), device=device), torch.empty_like(source)

    def product() -> None:
        torch.mm(w, x, out=out)

    def copy() -> None:
        target.copy_(source)

    pair = _on_streams if device.type == "cuda" else _on_threads
    with torch.inference_mode():
        kernel_once, copy_once = (_alone(work, 1, device) for work in (product, copy))
        many = [max(1, round(_SECONDS[device.type] / once)) for once in (kernel_once, copy_once)]
        kernel_s, copy_s = _alone(product, many[0], device), _alone(copy, many[1], device)
        both_s = statistics.median(pair(product, copy, many, device) for _ in range(_ROUNDS))
    moved = float(w.nbytes)
    return Overlap(kernel_s, copy_s, both_s, moved * many[0], 2.0 * moved * many[1])


def _alone(work: Callable[[], None], times: int, device: torch.device) -> float:
    samples: list[float] = []
    for _ in range(_ROUNDS + 1):
        _wait(device)
        started = time.perf_counter()
        for _ in range(times):
            work()
        _wait(device)
        samples.append(time.perf_counter() - started)
    return statistics.median(samples[1:])


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _on_streams(
    first: Callable[[], None], second: Callable[[], None], many: list[int], device: torch.device
) -> float:
    streams = [torch.cuda.Stream(device) for _ in many]
    _wait(device)
    started = time.perf_counter()
    left = list(many)
    while any(left):  # in turn, so that neither queue fills while the other is still empty
        for i, work in enumerate((first, second)):
            if left[i]:
                left[i] -= 1
                with torch.cuda.stream(streams[i]):
                    work()
    _wait(device)
    return time.perf_counter() - started


def _on_threads(
    first: Callable[[], None], second: Callable[[], None], many: list[int], device: torch.device
) -> float:
    gate = threading.Barrier(2)

    def beside() -> None:
        torch.set_num_threads(1)  # a thread has its own count
        with torch.inference_mode():
            gate.wait()
            for _ in range(many[1]):
                second()

    other = threading.Thread(target=beside)
    other.start()
    gate.wait()
    started = time.perf_counter()
    for _ in range(many[0]):
        first()
    other.join()
    return time.perf_counter() - started
