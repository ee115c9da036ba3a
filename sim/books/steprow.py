"""A composed step as the recorder keeps it, and what a run of equal ones unfolds into."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from ..tiers.mover import NOTHING, Moved

if TYPE_CHECKING:
    from ..engine.drafting import Growth

Int64Array = npt.NDArray[np.int64]
NOWHERE: Mapping[str, float] = {}


class StepRow(NamedTuple):
    """A composed step, or a run of ``steps`` equal ones; the counts are those of its first step.

    Attributes
    ----------
    n_decode, context_sum, longest : sequences with one token, the keys they read, the longest context [tokens]
    growing : members of the decode cohort, whose contexts grow by one a step
    sampled : rows that reach the LM head and the sampler
    prefill : (new tokens, tokens cached before) of every other sequence
    contexts : single contexts, where the model's layers need them
    used_blocks, held_blocks, live_tokens : state of the KV cache once composed
    limiter : code of what kept the batch from being larger
    running : requests admitted
    queries, rejected : tokens that each decoding sequence computes, and drafted tokens that are not accepted
    growth : what changes from step to step of a run in which sequences verify drafted tokens
    moved : what KV transfers did to it; a run meets none
    preempted : requests that were preempted when its first step was composed
    selected : entries of the prompts that end, and those kept of them, where that is chosen then [tokens]
    shared : leading keys that all who decode read together, once [tokens]
    waited : resource -> how much longer it took because others on the device held it; a run meets none [ns]
    """

    n_decode: int
    context_sum: int
    longest: int
    growing: int
    sampled: int
    prefill: Sequence[tuple[int, int]]
    contexts: Sequence[int] | None
    used_blocks: int
    held_blocks: int
    live_tokens: int
    limiter: int
    running: int
    queries: int = 1
    rejected: int = 0
    growth: Growth | None = None
    moved: Moved = NOTHING
    preempted: int = 0
    waited: Mapping[str, float] = NOWHERE
    selected: tuple[int, int] | None = None
    shared: int = 0

    def at(self, step: int) -> tuple[int, int, list[int] | None]:
        """Return summed context, longest context and single contexts in one step of the run [tokens]."""
        contexts = self.contexts if self.contexts is None else [context + step for context in self.contexts]
        if self.growth is not None:
            return int(self.growth.keys[step]), int(self.growth.longest[step]), contexts
        return self.context_sum + step * self.n_decode, self.longest + step, contexts


row_of: Callable[[tuple[Any, ...]], StepRow] = partial(tuple.__new__, StepRow)  # pyright: ignore[reportUnknownMemberType]
"""Makes a row of all its fields, in their order."""


def unfolded(
    rows: Sequence[StepRow], steps: Int64Array, name: Literal["keys", "longest", "blocks", "tokens"]
) -> Int64Array:
    """Return a column of ``Growth`` for every step after a row's first, shape (sum of steps,); 0 where it has none."""
    out = np.zeros(int(steps.sum()), dtype=np.int64)
    if not any(map(attrgetter("growth"), rows)):
        return out
    many = [(at, row) for at, row in enumerate(rows) if row.growth is not None and steps[at] > 1]
    if not many:
        return out
    owners = np.fromiter((at for at, _ in many), np.int64, len(many))
    counts = steps[owners] - 1
    parts = [getattr(row.growth, name)[1 : steps[at]] for at, row in many]
    starts = (np.cumsum(steps) - steps)[owners] + 1
    within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    out[np.repeat(starts, counts) + within] = np.concatenate(parts)
    return out


def context_tokens(rows: Sequence[StepRow], steps: Int64Array) -> Int64Array:
    """Return the keys that decoding sequences read in every step; padding in a held batch grows too [tokens]."""
    first = np.cumsum(steps) - steps
    within = np.arange(int(steps.sum())) - np.repeat(first, steps)
    sums = np.fromiter((row.context_sum for row in rows), np.int64, len(rows))
    even = np.fromiter((row.n_decode if row.growth is None else 0 for row in rows), np.int64, len(rows))
    found = np.repeat(sums, steps) + within * np.repeat(even, steps)
    keys = unfolded(rows, steps, "keys")
    return np.where(keys > 0, keys, found)
