"""How many drafted tokens are accepted, request by request and round by round, and what a request keeps of it."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from ..random import table

if TYPE_CHECKING:
    from .request import Request

Int64Array = npt.NDArray[np.int64]

_GROUP = 256
_GROUPS_KEPT = 32
_ROUNDS = 64
_ROUNDING = 1e-9


class Drafted:
    """What one request knows of its own speculation; ``Request.draft`` is one, or None without speculation.

    Attributes
    ----------
    rounds : rounds of drafted tokens verified so far: the index of its next draw
    proposes : drafted tokens wait for its next step
    slots : tokens of KV it has asked room for, rejected ones and lookahead included [tokens]
    rejected : of its last step, tokens computed and not accepted [tokens]
    trail : tokens of every emission, those in flight included
    emissions : emissions delivered
    """

    __slots__ = ("emissions", "proposes", "rejected", "rounds", "slots", "trail")

    def __init__(self) -> None:
        self.rounds = 0
        self.proposes = False
        self.slots = 0
        self.rejected = 0
        self.trail: list[int] = []
        self.emissions = 0

    def certain(self) -> None:
        """Note an emission of one token that nothing was drafted for."""
        self.trail.append(1)
        self.rejected = 0

    def propose(self) -> int:
        """Have tokens drafted for the next step; return those of the emission noted last [tokens]."""
        self.proposes = True
        return self.trail[-1]

    def in_flight(self, emissions: int) -> int:
        """Return the tokens of the emissions that are not delivered [tokens]; without any, all rejections are known."""
        if emissions:
            return sum(self.trail[-emissions:])
        self.rejected = 0
        return 0

    def deliver(self) -> int:
        """Hand out one emission; return its tokens [tokens]."""
        self.emissions += 1
        return self.trail[self.emissions - 1]

    def positions(self, count: int) -> Int64Array:
        """Hand out ``count`` emissions; return the tokens that came before each, shape (count,) [tokens]."""
        first = self.emissions
        self.emissions += count
        return np.cumsum(np.array(self.trail[: self.emissions], dtype=np.int64))[first - 1 : -1]

    def stop(self) -> None:
        """Forget what a preemption takes: drafted tokens and room."""
        self.proposes = False
        self.slots = self.rejected = 0


@dataclass(slots=True)
class Speculation:
    """The rules of speculation in one engine.

    Attributes
    ----------
    survival : chance that the first, second, ... drafted token of a round is accepted; never rising [-]
    mode : ``sampled`` draws every round of every request; ``expected`` gives every request the mean, whole tokens at a
        time, the rest carried over
    seed : of the draws
    width : candidates verified at each drafted position [tokens]
    lookahead : KV slots kept free for the drafts of the next step, as vLLM does for drafts that run on the device
        [tokens]
    disable_by_batch_size : from so many running requests on nothing is drafted; None: always
    num_drafts, num_draft_tokens, num_accepted_tokens : rounds, tokens verified beside the certain one, and accepted
        ones, of all requests
    """

    survival: tuple[float, ...]
    mode: Literal["sampled", "expected"] = "sampled"
    seed: int = 0
    width: int = 1
    lookahead: int = 0
    disable_by_batch_size: int | None = None
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    _groups: OrderedDict[int, npt.NDArray[np.int32]] = field(
        default_factory=OrderedDict[int, npt.NDArray[np.int32]]
    )

    def __post_init__(self) -> None:
        assert all(earlier >= later for earlier, later in pairwise(self.survival))

    @property
    def queries(self) -> int:
        """Tokens that a decoding request computes in a step: the certain one and all candidates [tokens]."""
        return 1 + len(self.survival) * self.width

    @property
    def mean_tokens(self) -> float:
        """Mean tokens of a round [tokens]."""
        return 1.0 + sum(self.survival)

    def off(self, running: int) -> bool:
        """Tell whether a batch of so many requests is too large to draft for."""
        return self.disable_by_batch_size is not None and running >= self.disable_by_batch_size

    def accepted(self, index: int, first: int, count: int) -> Int64Array:
        """Return the drafted tokens that a request accepts in ``count`` rounds from ``first`` on, shape (count,)."""
        reached = self._reached(index, first + count)[first : first + count + 1].astype(np.int64)
        return reached[1:] - reached[:-1] - 1

    def emitted(self, index: int, first: int, left: int) -> tuple[npt.NDArray[np.int32], int]:
        """Return the tokens that a request's rounds from ``first`` on have brought until ``left`` have come.

        Returns
        -------
        tokens before each round, counted from any origin, and after the last of them cut to what is left; and how many
        were cut off [tokens]
        """
        rounds = first + min(ceil(1.25 * left / self.mean_tokens) + 8, left)
        while True:
            reached = self._reached(index, rounds)
            wanted = int(reached[first]) + left
            if reached[-1] >= wanted:
                break
            rounds = min(2 * rounds, first + left)
        last = int(reached.searchsorted(wanted))
        found = reached[first : last + 1].copy()
        cut = int(found[-1]) - wanted
        found[-1] = wanted
        return found, cut

    def _reached(self, index: int, rounds: int) -> npt.NDArray[np.int32]:
        """Return the tokens of a request after no round, one, ..., ``rounds`` or more of them [tokens]."""
        if self.mode == "expected":
            means = np.arange(rounds + 1) * self.mean_tokens
            return np.floor(means + _ROUNDING).astype(np.int32)
        return self._drawn(index // _GROUP, rounds)[index % _GROUP]

    def verify(self, request: Request, tokens: int) -> int:
        """Verify the drafted ones of ``tokens`` in one step of a request; return the tokens that are kept [tokens]."""
        state, left = request.draft, request.num_tokens_needed - request.num_computed_tokens
        assert state is not None
        kept = 1
        if left > 0:
            accepted = int(self.accepted(request.index, state.rounds, 1)[0])
            accepted = min(accepted, (tokens - 1) // self.width)
            state.rounds += 1
            self.num_drafts += 1
            self.num_draft_tokens += tokens - 1
            self.num_accepted_tokens += accepted
            kept = min(accepted + 1, left)
        state.trail.append(kept)
        state.rejected = tokens - kept
        return kept

    def count(self, rounds: int, accepted: int) -> None:
        """Count verified rounds, and the drafted tokens accepted in them."""
        self.num_drafts += rounds
        self.num_draft_tokens += rounds * (self.queries - 1)
        self.num_accepted_tokens += accepted

    def _drawn(self, group: int, rounds: int) -> npt.NDArray[np.int32]:
        """Return ``_reached`` of a group of requests, shape (_GROUP, rounds + 1 or more), drawn as far as needed."""
        found = self._groups.get(group)
        if found is None:
            found = np.zeros((_GROUP, 1), dtype=np.int32)
        while found.shape[1] <= rounds:
            indices = range(group * _GROUP, (group + 1) * _GROUP)
            drawn = table(self.seed, "acceptance", indices, _ROUNDS, found.shape[1] - 1)
            more = np.ones(drawn.shape, dtype=np.int32)
            for chance in self.survival:
                more += drawn < chance
            more = np.cumsum(more, axis=1, dtype=np.int32) + found[:, -1:]
            found = self._groups[group] = np.concatenate((found, more), axis=1)
            if len(self._groups) > _GROUPS_KEPT:
                self._groups.popitem(last=False)
        return found
