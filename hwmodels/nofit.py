"""The one line that says why a model does not fit, term by term, and which setting would."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import ceil

from .lowering import Parallelism
from .pool import GIB, PoolSettings, Term

HIGHEST_UTILIZATION = 0.98
"""Above it the CUDA context and the graphs have no room on any card."""
LARGEST_TENSOR_PARALLEL = 32


def in_gib(size: int) -> str:
    """Return a size in GiB with two decimals."""
    return f"{size / GIB:.2f}"


def sum_of_terms(terms: Sequence[Term]) -> str:
    """Return the terms and their sum, in GiB.

    >>> sum_of_terms([Term("weights", 3 * GIB, "formula"), Term("non_torch", GIB // 2, "constant")])
    'weights 3.00 + non_torch 0.50 = 3.50 GiB'
    """
    parts = " + ".join(f"{term.name} {in_gib(term.bytes)}" for term in terms)
    return f"{parts} = {in_gib(sum(term.bytes for term in terms))} GiB"


Fits = Callable[[PoolSettings, Parallelism], int]


def advice(
    spare: Fits, settings: PoolSettings, ranks: Parallelism, heads: Sequence[int], total: int, budget: int
) -> str:
    """Name the changes that would make it fit, each on its own: the largest setting that does.

    Parameters
    ----------
    spare : bytes left on the tightest rank after one block, under other settings; negative: no fit [B]
    settings, ranks : resolved settings that do not fit
    heads : query heads of each kind of layer, which tensor parallelism must divide
    total, budget : memory of the card, and what the engine takes of it [B]
    """
    found = list(_candidates(spare, settings, ranks, heads, total, budget))
    return "fits with " + " or ".join(found) if found else "no single setting of the engine makes it fit"


def _candidates(
    spare: Fits, settings: PoolSettings, ranks: Parallelism, heads: Sequence[int], total: int, budget: int
) -> Iterator[str]:
    needed = ceil((budget - spare(settings, ranks)) / total * 100) / 100
    if needed <= HIGHEST_UTILIZATION:
        yield f"gpu_memory_utilization {needed:.2f}"
    seqs = _largest(lambda n: spare(replace(settings, max_num_seqs=n), ranks), settings.max_num_seqs)
    if seqs:
        yield f"max_num_seqs {seqs}"
    tokens = _largest(
        lambda n: spare(replace(settings, max_num_batched_tokens=n), ranks), settings.max_num_batched_tokens
    )
    if tokens:
        yield f"max_num_batched_tokens {tokens}"
    if settings.attention == "naive":
        length = _largest(lambda n: spare(replace(settings, max_model_len=n), ranks), settings.max_model_len)
        if length:
            yield f"max_model_len {length}"
        if spare(replace(settings, attention="flash"), ranks) >= 0:
            yield "kernels.attention flash"
    degree = ranks.tensor_parallel_size * 2
    while degree <= LARGEST_TENSOR_PARALLEL and all(n % degree == 0 for n in heads):
        if spare(settings, replace(ranks, tensor_parallel_size=degree)) >= 0:
            yield f"tensor_parallel_size {degree}"
            break
        degree *= 2
    for weights in ("fp8", "w4a16"):
        if spare(replace(settings, weights=weights), ranks) >= 0:
            yield f"quantization.weights {weights}"
            break


def _largest(spare: Callable[[int], int], current: int | None) -> int:
    """Largest power of two below ``current`` that fits; 0 if none does."""
    size = 1 << max((current or 1) - 1, 1).bit_length() - 1
    while size and not (size < (current or 1) and spare(size) >= 0):
        size //= 2
    return size
