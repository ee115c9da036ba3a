"""The decoding requests of an engine, advanced together at a cost that does not grow with their number."""

from __future__ import annotations

from heapq import heappop, heappush

from .request import Request


class DecodeCohort:
    """The running requests that get exactly one token in every step.

    A member's computed tokens are ``offset + tick``: one counter moves them all, and ``Request`` is only
    written when a request leaves. Sums that a step needs (contexts, blocks that fill up) are kept as they
    change.

    Parameters
    ----------
    block_size : tokens of one KV block [tokens]
    """

    __slots__ = (
        "_last_ticks", "_leaving", "_longest", "_sequence", "block_size", "context_sum", "count", "members",
        "residues", "tick",
    )  # fmt: skip

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.members: dict[Request, int] = {}
        self.count = 0
        self.tick = 0
        self.context_sum = 0
        self.residues: dict[int, int] = {}
        self._last_ticks: dict[Request, tuple[int, int]] = {}
        self._leaving: list[tuple[int, int, Request]] = []
        self._sequence = 0
        self._longest: int | None = 0

    def __len__(self) -> int:
        return self.count

    def __contains__(self, request: Request) -> bool:
        return request in self.members

    def join(self, request: Request, steps: int) -> None:
        """Add a request whose last token will be computed in the ``steps``-th step from now (steps >= 1)."""
        computed = request.num_computed_tokens
        offset = computed - self.tick
        self.members[request] = offset
        self.count += 1
        self.context_sum += computed
        residue = offset % self.block_size
        self.residues[residue] = self.residues.get(residue, 0) + 1
        last = self.tick + steps
        self._sequence += 1
        self._last_ticks[request] = (last, self._sequence)
        heappush(self._leaving, (last, self._sequence, request))
        if self._longest is not None and offset > self._longest - self.tick:
            self._longest = computed

    def leave(self, request: Request) -> None:
        """Remove a request and write its computed tokens back to it."""
        offset = self.members.pop(request)
        self.count -= 1
        del self._last_ticks[request]
        request.num_computed_tokens = computed = offset + self.tick
        self.context_sum -= computed
        residue = offset % self.block_size
        if self.residues[residue] == 1:
            del self.residues[residue]
        else:
            self.residues[residue] -= 1
        if computed == self._longest:
            self._longest = None

    def computed(self, request: Request) -> int:
        """Computed tokens of a member [tokens]."""
        return self.members[request] + self.tick

    def contexts(self) -> list[int]:
        """Computed tokens of every member [tokens]."""
        tick = self.tick
        return [offset + tick for offset in self.members.values()]

    @property
    def longest(self) -> int:
        """Computed tokens of the member that has most; 0 without members [tokens]."""
        if self._longest is None:
            self._longest = max(self.members.values(), default=-self.tick) + self.tick
        return self._longest

    def advance(self, steps: int) -> None:
        """Compute ``steps`` more tokens for every member."""
        self.tick += steps
        self.context_sum += steps * self.count
        if self._longest is not None:
            self._longest = self._longest + steps if self.count else 0

    def steps_to_last(self) -> int:
        """Steps until some member's last token is computed; 0 without members [steps]."""
        heap = self._leaving
        while heap and self._last_ticks.get(heap[0][2]) != heap[0][:2]:
            heappop(heap)
        return heap[0][0] - self.tick if heap else 0

    def at_last(self) -> list[Request]:
        """Take the members whose last token has just been computed; they stay members."""
        found: list[Request] = []
        heap = self._leaving
        if not heap or heap[0][0] > self.tick:
            return found
        while heap and heap[0][0] <= self.tick:
            last, sequence, request = heappop(heap)
            if self._last_ticks.get(request) == (last, sequence):
                found.append(request)
        return found

    def blocks_needed(self, steps: int = 1) -> int:
        """Blocks that must be added to compute ``steps`` more tokens for every member [blocks]."""
        if steps == 1:
            return self.residues.get(-self.tick % self.block_size, 0)
        cycles, rest = divmod(steps, self.block_size)
        return cycles * self.count + sum(count for due, count in self._due() if due < rest)

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
