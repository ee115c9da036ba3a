"""Which layers each stage of a pipeline holds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from .errors import CapacityError
from .spec import ModelSpec


def pipeline_partition(n_layers: int, stages: int) -> tuple[int, ...]:
    """Return the layers on each stage as vLLM deals them out (``distributed/utils.py``, ``get_pp_indices``).

    What is left over goes to the stages before the last one, which holds the output head.

    >>> pipeline_partition(30, 4)
    (7, 8, 8, 7)

    Raises
    ------
    CapacityError
        Fewer layers than stages.
    """
    if not 1 <= stages <= max(n_layers, 1):
        raise CapacityError(
            f"parallelism.pipeline_parallel_size is {stages}; allowed: 1 to {n_layers} (one layer a stage)"
        )
    share = [n_layers // stages] * stages
    for i in range(n_layers % stages):
        # The last stage comes last in turn: it already has the head.
        share[-2 - i] += 1
    return tuple(share)


def stage_layers(
    model: ModelSpec, stages: int = 1, partition: Sequence[int] | None = None
) -> tuple[tuple[int, ...], ...]:
    """Return, for each stage, the index into ``model.layers`` of each of its layers.

    Parameters
    ----------
    model : the model
    stages : pipeline_parallel_size
    partition : layers on each stage where given, else vLLM's own split

    Raises
    ------
    CapacityError
        The partition does not have one entry a stage, or does not add up to the model's layers.
    """
    order = model.order or tuple(i for i, group in enumerate(model.layers) for _ in range(group.count))
    sizes = tuple(partition) if partition is not None else pipeline_partition(len(order), stages)
    if len(sizes) != stages or sum(sizes) != len(order) or min(sizes, default=0) < 0:
        raise CapacityError(
            f"pipeline partition {list(sizes)} does not split {len(order)} layers over {stages} stages"
        )
    cut = [0]
    for size in sizes:
        cut.append(cut[-1] + size)
    return tuple(order[a:b] for a, b in pairwise(cut))
