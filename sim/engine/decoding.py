"""The decoding requests of an engine, advanced together at a cost that does not grow with their number."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, cast

from .request import Request

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from .drafting import Growth
    from .flight import CascadeTimer, StepTimer
    from .stepload import StepLoad


class DecodeCohort:
    """The running requests that get exactly one token in every step.

    The tokens that a member holds are ``offset + tick``: one counter moves them all, and ``Request`` is only
    written when a request leaves. They are all that it has computed but for what was evicted of its prompt. Sums
    that a step needs (contexts, blocks that fill up) are kept as they change.

    Parameters
    ----------
    block_size : tokens of one KV block [tokens]
    """

    even = True
    """Whether every member computes and keeps the same in every step."""
    margin = 0
    """Room that a request may take beyond its own tokens [tokens]."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.queries = 1
        self.members: dict[Request, int] = {}
        self.count: int = 0
        self.tick: int = 0
        self.context_sum = 0
        self.residues: dict[int, int] = {}
        self._joined: dict[Request, int] = {}
        self._leaving: list[tuple[int, int, Request]] = []
        self._sequence = 0
        self._longest: int | None = 0

    def __len__(self) -> int:
        return self.count

    def __contains__(self, request: Request) -> bool:
        return request in self.members

    def join(self, request: Request, steps: int) -> None:
        """Add a request whose last token will be computed in the ``steps``-th step from now (steps >= 1)."""
        held = request.num_held_tokens
        offset = held - self.tick
        self.members[request] = offset
        self.count += 1
        self.context_sum += held
        residue = offset % self.block_size
        self.residues[residue] = self.residues.get(residue, 0) + 1
        self._sequence += 1
        self._joined[request] = self._sequence
        heappush(self._leaving, (self.tick + steps, self._sequence, request))
        if self._longest is not None and offset > self._longest - self.tick:
            self._longest = held

    def leave(self, request: Request) -> None:
        """Remove a request and write its computed tokens back to it."""
        offset = self.members.pop(request)
        self.count -= 1
        del self._joined[request]
        held = offset + self.tick
        request.num_computed_tokens = held + request.num_evicted_tokens
        self.context_sum -= held
        residue = offset % self.block_size
        if self.residues[residue] == 1:
            del self.residues[residue]
        else:
            self.residues[residue] -= 1
        if held == self._longest:
            self._longest = None

    def computed(self, request: Request) -> int:
        """Computed tokens of a member [tokens]."""
        return self.members[request] + self.tick + request.num_evicted_tokens

    def contexts(self) -> list[int]:
        """Tokens that every member holds [tokens]."""
        tick = self.tick
        return [offset + tick for offset in self.members.values()]

    @property
    def longest(self) -> int:
        """Tokens of the member that holds most; 0 without members [tokens]."""
        if self._longest is None:
            self._longest = max(self.members.values(), default=-self.tick) + self.tick
        return self._longest

    @property
    def keys_read(self) -> tuple[int, int]:
        """Keys that the step composed last reads: all together, and by the longest sequence [tokens]."""
        longest = self._longest
        return self.context_sum, self.longest if longest is None else longest

    def advance(self, steps: int) -> int:
        """Compute ``steps`` more steps; return the tokens that are computed and kept [tokens]."""
        self.tick += steps
        tokens = steps * self.count
        self.context_sum += tokens
        if self._longest is not None and self.count:
            self._longest += steps
        return tokens

    def run_ns(self, timer: StepTimer, load: StepLoad, steps: int) -> npt.NDArray[np.int64]:
        """Return the durations of the step composed last and of those after it, ``steps`` in all [ns]."""
        if load.shared:
            sharing = cast("CascadeTimer", timer)
            counts = (load.n_decode, load.context_sum, load.longest)
            return sharing.decode_run_ns(*counts, steps, shared=load.shared)
        return timer.decode_run_ns(load.n_decode, load.context_sum, load.longest, steps, load.contexts)

    def timer(self, timer: StepTimer) -> StepTimer:
        """Return what times a single step of this cohort."""
        return timer

    def growth(self, steps: int) -> Growth | None:
        """Return what changes over a run beyond one token a member and step; None if nothing does."""
        return None

    def switch(self, queries: int) -> None:
        """Compute so many tokens of each member in a step from now on."""
        assert queries == 1

    def slots(self, request: Request, tokens: int) -> int:
        """Return the tokens that ``request`` needs room for to compute ``tokens`` more [tokens]."""
        return request.num_held_tokens + tokens

    def last_tokens(self, request: Request) -> int:
        """Return what the step composed last brings a member [tokens]."""
        return 1

    def steps_to_last(self) -> int:
        """Steps until some member's last token is computed; 0 without members [steps]."""
        heap, joined = self._leaving, self._joined
        while heap and joined.get(heap[0][2]) != heap[0][1]:
            heappop(heap)
        return heap[0][0] - self.tick if heap else 0

    def at_last(self) -> list[Request]:
        """Take the members whose last token has just been computed; they stay members."""
        found: list[Request] = []
        heap, tick = self._leaving, self.tick
        while heap and heap[0][0] <= tick:
            _, sequence, request = heappop(heap)
            if self._joined.get(request) == sequence:
                found.append(request)
        return found

    def blocks_needed(self, steps: int = 1) -> int:
        """Blocks that must be added to compute ``steps`` more tokens for every member [blocks]."""
        size, tick, residues = self.block_size, self.tick, self.residues
        if steps == 1:
            return residues.get(-tick % size, 0)
        cycles, rest = divmod(steps, size)
        return cycles * self.count + sum(self.blocks_by_step(rest))

    def blocks_by_step(self, steps: int) -> list[int]:
        """Blocks that each of the next ``steps`` steps adds, as far as members grow evenly [blocks]."""
        size, tick, residues = self.block_size, self.tick, self.residues
        return [residues.get(-at % size, 0) for at in range(tick, tick + steps)]

    def blocks_at_most(self, steps: int) -> int:
        """Blocks that ``steps`` more steps need at most [blocks]; quicker than ``blocks_needed``."""
        return self.count * (steps // self.block_size + 1)

    def steps_within(self, blocks: int) -> int:
        """Most steps for which ``blocks_needed`` is at most ``blocks`` [steps]."""
        cycles, left = divmod(blocks, self.count)
        for due, count in sorted(self._due()):
            if count > left:
                return cycles * self.block_size + due
            left -= count
        raise AssertionError("a cycle needs one block of every member")

    def _due(self) -> list[tuple[int, int]]:
        """In how many steps how many members need their next block, within one block's length."""
        return [(-(residue + self.tick) % self.block_size, count) for residue, count in self.residues.items()]
