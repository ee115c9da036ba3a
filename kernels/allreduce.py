"""All-reduce over the devices of this machine: NCCL between GPUs, gloo between processes on the CPU.

One process a device; every size is timed by all of them, and the slowest rank's median counts, since a step waits
for it.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as processes

from .call import tolerance, torch_dtype
from .cost import cost_of
from .errors import KernelError
from .results import Measured
from .shape import KernelShape
from .timer import LEAST_REPEATS, summarise

NAMES = {"cuda": "nccl", "cpu": "gloo"}
_INNER = 20
_PATIENCE = timedelta(seconds=60)


def time_allreduce(shapes: Sequence[KernelShape], kind: str, budget_s: float) -> list[Measured]:
    """Time all-reduces of one group size.

    Parameters
    ----------
    shapes : messages, all of one ``world_size``
    kind : ``cuda`` or ``cpu``
    budget_s : time for the repeats of each [s]

    Raises
    ------
    KernelError : more ranks than devices, or several group sizes at once
    """
    sizes = {shape.world_size for shape in shapes}
    if len(sizes) != 1:
        raise KernelError(f"all-reduces of one group size are timed together; got {sorted(sizes)}")
    (ranks,) = sizes
    if kind == "cuda" and ranks > torch.cuda.device_count():
        raise KernelError(f"world_size is {ranks}; this machine has {torch.cuda.device_count()} GPUs")
    with tempfile.TemporaryDirectory() as folder:
        asked = [shape.as_dict() for shape in shapes]
        processes.spawn(_rank, args=(ranks, kind, folder, asked, budget_s), nprocs=ranks, join=True)
        found = [json.loads((Path(folder) / f"rank{rank}.json").read_text()) for rank in range(ranks)]
    return [_slowest(shape, [each[i] for each in found]) for i, shape in enumerate(shapes)]


def _slowest(shape: KernelShape, ranks: list[dict[str, Any]]) -> Measured:
    slowest = max(ranks, key=lambda each: statistics.median(each["samples"]))
    error = max(each["error"] for each in ranks)
    cost = cost_of(shape)
    clock = "cuda_events" if shape.kernel == "nccl" else "wall"
    timing = (
        summarise(slowest["samples"], slowest["inner"], clock) if error < tolerance(shape.dtype) else None
    )
    return Measured(timing, error, tolerance(shape.dtype), cost.flop, cost.link_bytes)


def _rank(
    rank: int, ranks: int, kind: str, folder: str, asked: list[dict[str, Any]], budget_s: float
) -> None:
    """Run in each process: time every size, write what was seen."""
    device = torch.device(kind, rank) if kind == "cuda" else torch.device("cpu")
    torch.set_num_threads(1)
    if kind == "cuda":
        torch.cuda.set_device(device)
    store = f"file://{folder}/store"
    dist.init_process_group(NAMES[kind], init_method=store, rank=rank, world_size=ranks, timeout=_PATIENCE)
    try:
        found = [_time_one(KernelShape(**each), device, ranks, budget_s) for each in asked]
        (Path(folder) / f"rank{rank}.json").write_text(json.dumps(found))
        dist.barrier()
    finally:
        dist.destroy_process_group()


def _time_one(shape: KernelShape, device: torch.device, ranks: int, budget_s: float) -> dict[str, Any]:
    dtype = torch_dtype(shape.dtype)
    x = torch.full(
        (max(shape.bytes // dtype.itemsize, 1),), 1.0 + dist.get_rank(), dtype=dtype, device=device
    )
    dist.all_reduce(x)
    wanted = ranks * (ranks + 1) / 2.0
    error = float((x.float() - wanted).abs().max()) / wanted
    x.zero_()  # sums of zeros stay finite however often they are repeated
    inner = _INNER if device.type == "cuda" else 1
    # Every rank must make the same number of calls: the first sets it.
    repeats = torch.tensor([_repeats(x, device, budget_s, inner)], device=device)
    dist.broadcast(repeats, 0)
    return {
        "error": error,
        "inner": inner,
        "samples": [_sample(x, device, inner) for _ in range(int(repeats))],
    }


def _repeats(x: torch.Tensor, device: torch.device, budget_s: float, inner: int) -> int:
    once = statistics.median(_sample(x, device, inner) for _ in range(3))
    return min(max(LEAST_REPEATS, int(budget_s / (once * inner))), 100)


def _sample(x: torch.Tensor, device: torch.device, inner: int) -> float:
    if device.type == "cuda":
        before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        before.record()
        for _ in range(inner):
            dist.all_reduce(x)
        after.record()
        after.synchronize()
        return before.elapsed_time(after) * 1e-3 / inner
    started = time.perf_counter()
    for _ in range(inner):
        dist.all_reduce(x)
    return (time.perf_counter() - started) / inner
