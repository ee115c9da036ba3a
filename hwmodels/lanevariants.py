"""Which attention lane a layer takes: kernels differ by head size, by sharing of KV heads and by KV dtype.

A lane without a suffix holds for grouped queries, heads of 128 and a 16-bit cache. ``vllm_d64`` is the same software
with heads of 64, ``vllm_mha`` one KV head a query head, ``vllm_wide`` more than 32 query heads a KV head, ``vllm_kv8``
a cache of one byte an element, ``vllm_kv8_fp8`` one that is also multiplied in fp8, ``vllm_win`` a sliding window;
suffixes add up.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, TypeVar

from .errors import CatalogError
from .timing.form import LaneLike

USUAL_HEAD_DIM = 128
WIDEST_GROUP = 32
"""Query heads a KV head that grouped kernels take at most; TensorRT-LLM's others cost as much per head as without."""


def attention_lane(
    software: str,
    n_heads: int,
    n_kv_heads: int,
    head_dim: int,
    kv_width: float = 2.0,
    *,
    windowed: bool = False,
    fp8: bool = False,
) -> str:
    """Return the lane made for a layer, whether or not a device has it.

    >>> attention_lane("vllm", 32, 8, 128), attention_lane("vllm", 32, 32, 64, 1.0)
    ('vllm', 'vllm_kv8_d64_mha')
    """
    suffix = ("_kv8" if kv_width < 2.0 else "") + ("_fp8" if fp8 else "")
    suffix += f"_d{head_dim}" if head_dim != USUAL_HEAD_DIM else ""
    suffix += "_mha" if n_heads == n_kv_heads else "_wide" if n_heads > WIDEST_GROUP * n_kv_heads else ""
    return f"{software}{suffix}" + ("_win" if windowed else "")


def lane_choices(name: str) -> Iterator[str]:
    """Yield lanes that can stand in for one, nearest first: suffixes go from the last to the first.

    >>> list(lane_choices("vllm_kv8_d64_mha"))
    ['vllm_kv8_d64_mha', 'vllm_kv8_d64', 'vllm_kv8', 'vllm']
    """
    while True:
        yield name
        name, cut, _ = name.rpartition("_")
        if not cut:
            return


def inside_engine(lane: LaneLike) -> bool:
    """Return whether a lane was timed within an engine's steps, so that nothing is lost in them any more."""
    return bool(getattr(lane, "inside_engine", False))


L = TypeVar("L", bound=LaneLike, covariant=True)


class HasLanes(Protocol[L]):
    """A device, as far as its lanes go."""

    def lane(self, family: str, lane: str = ...) -> L:
        """Return a lane, or the nearest to it; ``lane`` of what comes back says which."""
        ...


def lane_or_none(device: HasLanes[L], family: str, name: str) -> L | None:
    """Return the lane of a device, or the nearest to it; None where it has none of that family."""
    try:
        return device.lane(family, name)
    except CatalogError:
        return None


def nearest_lane(device: HasLanes[L], family: str, name: str) -> L:
    """Return the lane of a device that is made for ``name``, or else the one that stands in for it.

    Raises
    ------
    CatalogError : the device has no lane of that family
    """
    found = device.lane(family, name)
    for choice in lane_choices(name):
        found = device.lane(family, choice)
        if getattr(found, "lane", choice) == choice:
            return found
    return found
