"""Which shapes to time on a device within a budget, in which order, and which of them no fit may see.

Each lane (operation, kernel, dtype) has a share of the budget. Its shapes are those that pin one parameter each,
then, one by one, the candidate farthest from all taken so far, so that any part of the list from its start is
spread evenly. Lanes are interleaved: a run that ends early has a part of each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from ..hwmodels.units import format_seconds
from ..kernels.cost import cost_of
from ..kernels.shape import KernelShape, shape_from
from .errors import CalibrationError
from .machine import Lane, Machine, machine_from
from .machine import machine_of as machine_of
from .spaces import SPACES, Space, allreduces

Role = Literal["fit", "held_out", "repeat"]

HELD_OUT: Final = 0.2
"""Share of the points that are never fitted: they give the reported error and the width of intervals."""
REPEATED: Final = 0.1
"""Share of the points that are timed again later, to see drift."""
_CANDIDATES = 4
"""Random shapes to choose from, per shape that is chosen."""
_SPREAD = 3.0
"""A point may cost so many times the average of its lane."""
_CALLS = {"cpu": 14.0, "cuda": 16.0}
"""Calls per point: the check, its reference, warm-up, repeats."""
_SETUP_S = {"cpu": 0.025, "cuda": 0.15}
REPEATS_S: Final = {"cpu": 0.04, "cuda": 0.1}
"""Time for the repeats of a point whose calls are short [s]."""
_PLANNED = 0.9
"""Part of the budget that is planned for; the rest is for what takes longer than thought."""


@dataclass(frozen=True, slots=True)
class Portion:
    """What one lane gets: its part of the budget, relative to the others', and the most points it is worth."""

    share: float
    most: int


_STREAMS = (
    "rmsnorm/torch_rmsnorm",
    "rotary/torch_rotary",
    "swiglu/torch_swiglu",
    "embedding/torch_embedding",
)
_CPU_PORTIONS: dict[str, Portion] = {
    "gemm/torch_mm/bfloat16": Portion(0.34, 110),
    "gemm/torch_int_mm/int8": Portion(0.015, 8),
    "gemm/torch_dequantise_mm/int8_wo": Portion(0.02, 10),
    "gemm/torch_dequantise_mm/int4_wo": Portion(0.02, 10),
    "attn_decode/torch_paged/bfloat16": Portion(0.28, 90),
    "attn_prefill/torch_sdpa/bfloat16": Portion(0.12, 40),
    "attn_prefill/torch_naive/bfloat16": Portion(0.02, 8),
    "attn_mixed/torch_sdpa+torch_paged/bfloat16": Portion(0.04, 14),
    **{f"{lane}/bfloat16": Portion(0.01, 8) for lane in _STREAMS},
    "sample_greedy/torch_argmax/float32": Portion(0.01, 6),
    "sample_topp/torch_topk/float32": Portion(0.01, 6),
    "moe/torch_grouped_mm/bfloat16": Portion(0.06, 20),
    "decoder_step/torch_eager/bfloat16": Portion(0.02, 8),
    "copy_d2d/torch_copy/uint8": Portion(0.01, 8),
    "copy_blocks/torch_index/uint8": Portion(0.01, 8),
}
_CUDA_PORTIONS: dict[str, Portion] = {
    "gemm/torch_mm/bfloat16": Portion(0.26, 160),
    "gemm/torch_mm/float16": Portion(0.03, 20),
    "gemm/torch_mm/float32": Portion(0.03, 20),
    "gemm/torch_scaled_mm/fp8": Portion(0.06, 40),
    "gemm/torch_int_mm/int8": Portion(0.03, 20),
    "gemm/torch_dequantise_mm/int8_wo": Portion(0.03, 20),
    "gemm/torch_dequantise_mm/int4_wo": Portion(0.03, 20),
    "attn_decode/triton_paged/bfloat16": Portion(0.16, 120),
    "attn_decode/torch_paged/bfloat16": Portion(0.03, 20),
    "attn_prefill/torch_sdpa/bfloat16": Portion(0.11, 60),
    "attn_prefill/torch_naive/bfloat16": Portion(0.03, 20),
    "attn_mixed/torch_sdpa+triton_paged/bfloat16": Portion(0.05, 30),
    **{f"{lane}/bfloat16": Portion(0.012, 12) for lane in _STREAMS},
    "sample_greedy/torch_argmax/float32": Portion(0.01, 8),
    "sample_topp/torch_topk/float32": Portion(0.01, 8),
    "moe/torch_grouped_mm/bfloat16": Portion(0.05, 30),
    "decoder_step/torch_eager/bfloat16": Portion(0.015, 12),
    "decoder_step/torch_graph/bfloat16": Portion(0.015, 12),
    **{
        f"{lane}/uint8": Portion(0.01, 10)
        for lane in (
            "copy_h2d/torch_pinned",
            "copy_d2h/torch_pinned",
            "copy_d2d/torch_copy",
            "copy_blocks/torch_index",
        )
    },
}
PORTIONS: Final = {"cpu": _CPU_PORTIONS, "cuda": _CUDA_PORTIONS}


@dataclass(frozen=True, slots=True)
class Point:
    """One timing to make.

    Attributes
    ----------
    id : unique in the plan; the same shape in another run has the same
    shape : what to time
    role : ``fit``, ``held_out`` (no fit may see it), or ``repeat`` of a point timed before
    seconds : what it is planned to take [s]
    """

    id: str
    shape: KernelShape
    role: Role
    seconds: float


@dataclass(frozen=True, slots=True)
class Plan:
    """Timings in the order in which they are made.

    Attributes
    ----------
    machine, budget_s, seed : what it was made for and from
    points : all timings
    skipped : lanes that get no time, with the reason
    """

    machine: Machine
    budget_s: float
    seed: int
    points: tuple[Point, ...]
    skipped: Mapping[str, str]

    @property
    def seconds(self) -> float:
        """Planned time [s]."""
        return sum(point.seconds for point in self.points)

    def describe(self) -> str:
        """Return the plan as a table, one line a lane."""
        lines = [f"{'lane':<46} points held out repeats  planned"]
        for lane in dict.fromkeys(lane_of(point.shape) for point in self.points):
            mine = [point for point in self.points if lane_of(point.shape) == lane]
            count = {
                role: sum(point.role == role for point in mine) for role in ("fit", "held_out", "repeat")
            }
            planned = format_seconds(sum(point.seconds for point in mine))
            new = count["fit"] + count["held_out"]
            lines.append(f"{lane:<46} {new:>6} {count['held_out']:>8} {count['repeat']:>7}  {planned:>7}")
        whole = format_seconds(self.seconds)
        lines.append(f"{len(self.points)} timings, {whole} of a budget of {format_seconds(self.budget_s)}")
        lines += [f"skipped {lane}: {reason}" for lane, reason in self.skipped.items()]
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """Return all of it, for a file."""
        points = [
            {"id": p.id, "role": p.role, "seconds": p.seconds, "shape": p.shape.as_dict()}
            for p in self.points
        ]
        return {
            "machine": self.machine.as_dict(),
            "budget_s": self.budget_s,
            "seed": self.seed,
            "skipped": dict(self.skipped),
            "points": points,
        }


def plan_from(record: Mapping[str, Any]) -> Plan:
    """Return the plan that ``as_dict`` wrote."""
    points = tuple(
        Point(each["id"], shape_from(each["shape"]), each["role"], each["seconds"])
        for each in record["points"]
    )
    machine = machine_from(record["machine"])
    return Plan(machine, record["budget_s"], record["seed"], points, record["skipped"])


def lane_of(shape: KernelShape) -> str:
    """Return the lane of a shape as text: operation, kernel and dtype."""
    return f"{shape.op}/{shape.kernel}/{shape.dtype}"


def design(
    machine: Machine, budget_s: float, seed: int = 0, skipped: Mapping[str, str] | None = None
) -> Plan:
    """Choose the shapes to time.

    Parameters
    ----------
    machine : the device
    budget_s : time for all of it [s]
    seed : of the random candidates; the same seed gives the same plan
    skipped : lanes that the device cannot run, with the reason, to be told in the plan

    Raises
    ------
    CalibrationError : a budget that is not positive

    Examples
    --------
    >>> plan = design(machine_of("h100_sxm"), budget_s=300.0)
    >>> plan.seconds < 300.0
    True
    """
    if not budget_s > 0.0:
        raise CalibrationError(f"budget is {budget_s!r} s; it must be more than 0")
    portions = {
        lane: PORTIONS[machine.kind]["/".join(lane)]
        for lane in machine.lanes
        if "/".join(lane) in PORTIONS[machine.kind]
    }
    whole = sum(portion.share for portion in portions.values())
    placed: list[tuple[float, Point]] = []
    for number, (lane, portion) in enumerate(portions.items()):
        rng = np.random.default_rng((seed, number))
        share_s = _PLANNED * budget_s * portion.share / whole
        placed += _lane_points(machine, lane, share_s, portion.most, rng)
    placed += _allreduce_points(machine, seed)
    placed.sort(key=lambda item: item[0])
    return Plan(machine, budget_s, seed, tuple(point for _, point in placed), dict(skipped or {}))


def point_seconds(machine: Machine, shape: KernelShape) -> float:
    """Return what timing a shape is planned to take [s]."""
    once = machine.rough_seconds(shape.op, shape.dtype, cost_of(shape))
    return _SETUP_S[machine.kind] + max(_CALLS[machine.kind] * once, REPEATS_S[machine.kind])


def fits_memory(machine: Machine, shape: KernelShape) -> bool:
    """Tell whether a kernel's data takes less than a quarter of the memory, its scores in memory included."""
    needed = cost_of(shape).hbm_bytes
    if shape.op == "attn_prefill":
        # The naive form holds scores and their softmax; the check holds one head's in float32.
        heads = 2.0 * shape.batch * shape.n_heads if shape.kernel == "torch_naive" else 4.0
        needed += 4.0 * heads * shape.q_len * shape.kv_len
    return needed < 0.25 * machine.memory_bytes


def _lane_points(
    machine: Machine, lane: Lane, share_s: float, most: int, rng: np.random.Generator
) -> list[tuple[float, Point]]:
    """Return a lane's points, each with its place in the run between 0 and 1."""
    timed_s = share_s / (1.0 + REPEATED)
    shapes = _choose(machine, SPACES[lane[0]], lane, timed_s, most, rng)
    n, n_always = len(shapes), sum(always for _, always in shapes)
    free = np.arange(n_always, n)
    held = set(rng.choice(free, min(round(HELD_OUT * n), len(free)), replace=False).tolist())
    fitted = [i for i in range(n) if i not in held]
    again = set(rng.choice(fitted, min(round(REPEATED * n), len(fitted)), replace=False).tolist())
    placed: list[tuple[float, Point]] = []
    for i, (shape, _) in enumerate(shapes):
        at = (i + 0.5) / n
        role: Role = "held_out" if i in held else "fit"
        point = Point(shape.key, shape, role, point_seconds(machine, shape))
        placed.append((at, point))
        if i in again:
            later = at + (1.0 - at) * rng.uniform(0.1, 0.6)
            placed.append((later, replace(point, id=f"{point.id}#2", role="repeat")))
    return placed


def _allreduce_points(machine: Machine, seed: int) -> list[tuple[float, Point]]:
    """Return the sums over several devices, at the end of the run: their processes are started once a group size."""
    shapes = allreduces(machine.devices, "nccl" if machine.kind == "cuda" else "gloo")
    held = set(np.random.default_rng(seed).permutation(len(shapes))[: round(HELD_OUT * len(shapes))].tolist())
    seconds = _SETUP_S[machine.kind] + REPEATS_S[machine.kind]
    roles: list[Role] = ["held_out" if i in held else "fit" for i in range(len(shapes))]
    return [(2.0 + i, Point(shape.key, shape, roles[i], seconds)) for i, shape in enumerate(shapes)]


def _choose(
    machine: Machine, space: Space, lane: Lane, budget_s: float, most: int, rng: np.random.Generator
) -> list[tuple[KernelShape, bool]]:
    """Return the shapes of a lane in order, each with whether it is one that is always timed."""
    dearest = max(_SPREAD * budget_s / most, 1.5 * (_SETUP_S[machine.kind] + REPEATS_S[machine.kind]))

    def affordable(shapes: Iterable[KernelShape]) -> dict[KernelShape, float]:
        costs = {shape: point_seconds(machine, shape) for shape in shapes if fits_memory(machine, shape)}
        return {shape: seconds for shape, seconds in costs.items() if seconds <= dearest}

    costs = affordable(space.always(machine, lane))
    chosen: list[tuple[KernelShape, bool]] = []
    left = budget_s
    for shape, seconds in costs.items():
        if seconds <= left and len(chosen) < most // 2:
            chosen.append((shape, True))
            left -= seconds
    drawn = (space.draw(machine, lane, rng) for _ in range(_CANDIDATES * most))
    others = {shape: seconds for shape, seconds in affordable(drawn).items() if shape not in costs}
    candidates = list(others)
    if not candidates:
        return chosen
    seconds = np.array(list(others.values()))
    places = np.array([space.place(shape) for shape in candidates])
    nearest = _distances(places, [space.place(shape) for shape, _ in chosen])
    while len(chosen) < most:
        open_to = np.where(seconds <= left, nearest, -1.0)
        best = int(np.argmax(open_to))
        if open_to[best] <= 0.0:
            break
        chosen.append((candidates[best], False))
        left -= float(seconds[best])
        nearest = np.minimum(nearest, np.linalg.norm(places - places[best], axis=1))
    return chosen


def _distances(places: NDArray[np.float64], taken: Sequence[tuple[float, ...]]) -> NDArray[np.float64]:
    """Return each candidate's distance from the nearest point taken, or from the middle if none is."""
    if not taken:
        return 1.0 / (1.0 + np.linalg.norm(places - np.median(places, axis=0), axis=1))
    return np.min([np.linalg.norm(places - np.array(each), axis=1) for each in taken], axis=0)
