"""The decoding requests of an engine that verify drafted tokens, advanced together at the cost of plain ones."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappush
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from .decoding import DecodeCohort

if TYPE_CHECKING:
    from .flight import SpeculativeTimer, StepTimer
    from .request import Request
    from .speculative import Drafted, Speculation
    from .stepload import StepLoad

Int64Array = npt.NDArray[np.int64]
_KEYS, _BLOCKS, _TOKENS = range(3)


class Growth(NamedTuple):
    """What changes from step to step while one batch verifies drafted tokens; arrays of shape (steps,).

    Attributes
    ----------
    keys, longest : keys read, all together and by the longest sequence [tokens]
    blocks : blocks taken in each step [blocks]
    tokens : tokens accepted, the certain ones included [tokens]
    """

    keys: Int64Array
    longest: Int64Array
    blocks: Int64Array
    tokens: Int64Array


class Member(NamedTuple):
    """A request's way from the step it joined before to its last token.

    Attributes
    ----------
    start : tick of its first step
    computed : tokens computed before each step, and after the last [tokens]
    first_slots : tokens of KV it needs room for in its first step [tokens]
    columns : keys, blocks and tokens of each step, shape (3, steps)
    rounds, cut : steps that verify drafted tokens, and accepted tokens of the last that are beyond its end
    """

    start: int
    computed: Int64Array
    first_slots: int
    columns: Int64Array
    rounds: int
    cut: int


class SpeculativeCohort(DecodeCohort):
    """Decoding requests that get one token or more in every step.

    How many a request accepts in each of its rounds is its own (counter-based draws), so its whole way is known when it
    joins. The cohort keeps, for the steps ahead, the sums over its members: joining and leaving cost a few operations
    on arrays as long as the way, a step costs no more than a plain one.

    Parameters
    ----------
    block_size : tokens of one KV block [tokens]
    rules : how many are drafted and accepted
    max_model_len : no room is asked for beyond [tokens]
    ahead : a step is composed while the one before it, whose rejections are not known yet, runs
    overruns : tells whether a request whose last emission has so many tokens is computed once more
    """

    even = False

    def __init__(
        self,
        block_size: int,
        rules: Speculation,
        max_model_len: int,
        ahead: bool,
        overruns: Callable[[Request, int], bool],
    ) -> None:
        super().__init__(block_size)
        self.rules = rules
        self.max_model_len = max_model_len
        self.ahead = ahead
        self.overruns = overruns
        self.queries = rules.queries
        self.margin = 2 * rules.queries + rules.lookahead
        self._ways: dict[Request, Member] = {}
        self._first = 0
        self._sums = np.zeros((3, 1024), dtype=np.int64)
        self._most = np.zeros(1024, dtype=np.int64)
        self._most_known = True

    # -- members ----------------------------------------------------------------------------------------------

    def join(self, request: Request, steps: int) -> None:
        """Add a request that ``steps`` tokens are left of."""
        way = self._way(request, steps)
        self.members[request] = self.tick
        self._ways[request] = way
        self.count += 1
        end = way.columns.shape[1]
        # The step that is computed in vain is not its last.
        last = self.tick + end - (way.computed[-1] > request.num_tokens_needed)
        self._sequence += 1
        self._joined[request] = self._sequence
        if steps > 0:
            heappush(self._leaving, (last, self._sequence, request))
        at = self._room(end)
        self._sums[:, at : at + end] += way.columns
        ahead = self._most[at : at + end]
        np.maximum(ahead, way.columns[_KEYS], out=ahead)

    def _way(self, request: Request, left: int) -> Member:
        rules, state, queries = self.rules, request.draft, self.queries
        assert state is not None
        computed = request.num_computed_tokens
        if left > 0 and queries > 1:
            found, cut = rules.emitted(request.index, state.rounds, left)
            rounds = steps = len(found) - 1
            reached = np.empty(steps + 2, dtype=np.int64)
            np.add(found, computed - int(found[0]), out=reached[:-1])
        else:
            steps = max(left, 1)  # without any left, its end is in flight
            rounds = cut = 0
            reached = np.arange(computed, computed + steps + 2)
        if left > 0 and self.overruns(request, int(reached[steps] - reached[steps - 1])):
            reached[steps + 1] = reached[steps] + 1
            steps += 1
        else:
            reached = reached[:-1]
        columns = np.empty((3, steps), dtype=np.int64)
        before, room = reached[:-1], queries + self._lookahead
        np.add(before, queries, out=columns[_KEYS])
        np.subtract(reached[1:], before, out=columns[_TOKENS])
        size, most = self.block_size, self.max_model_len
        blocks = np.zeros(steps + 1, dtype=np.int64)
        first_slots = computed + room
        if self.ahead:
            first_slots += state.rejected
            np.add(reached[:-2], room + queries, out=blocks[2:])
        else:
            np.add(reached[1:-1], room, out=blocks[2:])
        blocks[1] = first_slots = min(first_slots, most)
        if blocks[-1] > most:
            np.minimum(blocks, most, out=blocks)
        blocks += size - 1
        blocks //= size
        blocks[0] = held = -(-max(state.slots, computed) // size)
        if blocks[1:3].min() < held:  # they never fall from the second on
            np.maximum(blocks, held, out=blocks)
        np.subtract(blocks[1:], blocks[:-1], out=columns[_BLOCKS])
        return Member(self.tick, reached, first_slots, columns, rounds, cut)

    def _slots_of(self, way: Member, step: int) -> int:
        """Return the tokens of KV that a member needs room for in one of its steps [tokens].

        What is rejected of the step before is not known yet where a step is composed ahead.
        """
        if not step:
            return way.first_slots
        before = way.computed[step - 1] + self.queries if self.ahead else way.computed[step]
        return min(int(before) + self.queries + self._lookahead, self.max_model_len)

    def leave(self, request: Request) -> None:
        """Remove a request and write its progress back to it."""
        del self.members[request]
        del self._joined[request]
        way, state = self._ways.pop(request), request.draft
        assert state is not None
        self.count -= 1
        done = self.tick - way.start
        request.num_computed_tokens = int(way.computed[done])
        if done:
            self._write_back(request, way, state, done)
        rest = way.columns.shape[1] - done
        if not self.count:
            self._sums[:, self.tick - self._first :] = 0
            self._most[self.tick - self._first :] = 0
            self._most_known = True
        elif rest > 0:
            at = self.tick - self._first
            self._sums[:, at : at + rest] -= way.columns[:, done:]
            self._most_known = False

    def _write_back(self, request: Request, way: Member, state: Drafted, done: int) -> None:
        tokens = way.columns[_TOKENS, :done]
        state.trail.extend(tokens.tolist())
        state.slots = max(state.slots, self._slots_of(way, done - 1))
        state.rejected = self.queries - int(tokens[-1])
        rounds = min(done, way.rounds)
        if rounds:
            accepted = int(tokens[:rounds].sum()) - rounds + (way.cut if rounds == way.rounds else 0)
            self.rules.count(rounds, accepted)
            state.rounds += rounds

    def switch(self, queries: int) -> None:
        """Verify so many tokens a step from now on."""
        if queries == self.queries:
            return
        members = list(self.members)
        for request in members:
            self.leave(request)
        self.queries = queries
        for request in members:
            self.join(request, request.num_tokens_needed - request.num_computed_tokens)

    @property
    def _lookahead(self) -> int:
        return self.rules.lookahead if self.queries > 1 else 0

    def slots(self, request: Request, tokens: int) -> int:
        """Return the tokens that ``request`` needs room for to compute ``tokens`` more [tokens].

        Rejections of a step in flight are not known yet, and the next step's drafts are written ahead.
        """
        assert request.draft is not None
        rejected = request.draft.rejected if self.ahead else 0
        wanted = request.num_computed_tokens + rejected + tokens + self._lookahead
        return min(wanted, self.max_model_len)

    def last_tokens(self, request: Request) -> int:
        """Return what the step composed last brings a member [tokens]."""
        way = self._ways[request]
        return int(way.columns[_TOKENS, self.tick - 1 - way.start])

    # -- steps ------------------------------------------------------------------------------------------------

    def _room(self, steps: int) -> int:
        """Return the column of the next step, with so many columns from there."""
        at = self.tick - self._first
        if at + steps > self._sums.shape[1]:
            kept = max(at - 1, 0)  # the step composed last is still asked about
            size = max(self._sums.shape[1], 2 * (at - kept + steps))
            sums, most = np.zeros((3, size), dtype=np.int64), np.zeros(size, dtype=np.int64)
            rest = self._sums.shape[1] - kept
            rest = min(rest, size)
            sums[:, :rest] = self._sums[:, kept : kept + rest]
            most[:rest] = self._most[kept : kept + rest]
            self._sums, self._most = sums, most
            self._first += kept
            at -= kept
        return at

    def _total(self, column: int, steps: int) -> int:
        """Return the sum of a column over the next steps."""
        at = self.tick - self._first
        if steps == 1:
            return int(self._sums[column, at]) if self.count else 0
        return int(np.add.reduce(self._sums[column, at : at + steps])) if self.count else 0

    def _longest_from(self, at: int, steps: int) -> Int64Array:
        if not self._most_known:
            now = self.tick - self._first
            self._most[max(now - 1, 0) :] = 0
            for way in self._ways.values():
                start = max(way.start, self.tick - 1)
                keys = way.columns[_KEYS, start - way.start :]
                ahead = self._most[start - self._first : start - self._first + len(keys)]
                np.maximum(ahead, keys, out=ahead)
            self._most_known = True
        return self._most[at : at + steps]

    @property
    def keys_read(self) -> tuple[int, int]:
        """Keys that the step composed last reads: all together, and by the longest sequence [tokens]."""
        if not self.count:
            return 0, 0
        at = self.tick - 1 - self._first
        return int(self._sums[_KEYS, at]), int(self._longest_from(at, 1)[0])

    def advance(self, steps: int) -> int:
        """Compute ``steps`` more steps; return the tokens accepted [tokens]."""
        tokens = self._total(_TOKENS, steps)
        self.tick += steps
        return tokens

    def computed(self, request: Request) -> int:
        """Computed tokens of a member [tokens]."""
        way = self._ways[request]
        return int(way.computed[self.tick - way.start])

    def contexts(self) -> list[int]:
        """Keys that each member reads in the step composed last [tokens]."""
        before = self.tick - 1
        return [int(way.columns[_KEYS, before - way.start]) for way in self._ways.values()]

    def blocks_needed(self, steps: int = 1) -> int:
        """Blocks that must be added for ``steps`` more steps [blocks]."""
        return self._total(_BLOCKS, steps)

    def blocks_at_most(self, steps: int) -> int:
        """Blocks that ``steps`` more steps need at most, as if all drafted tokens were accepted [blocks]."""
        return self.count * (((steps + 3) * self.queries + self._lookahead) // self.block_size + 1)

    def steps_within(self, blocks: int) -> int:
        """Most steps for which ``blocks_needed`` is at most ``blocks`` [steps]."""
        at = self.tick - self._first
        return int(np.cumsum(self._sums[_BLOCKS, at:]).searchsorted(blocks, side="right"))

    def growth(self, steps: int) -> Growth:
        """Return what changes over the step composed last and those after it, ``steps`` in all."""
        at = self.tick - 1 - self._first
        part = self._sums[:, at : at + steps].copy()
        longest = self._longest_from(at, steps).copy()
        return Growth(part[_KEYS], longest, part[_BLOCKS], part[_TOKENS])

    def run_ns(self, timer: StepTimer, load: StepLoad, steps: int) -> Int64Array:
        """Return the durations of the step composed last and of those after it, ``steps`` in all [ns]."""
        timer = self.timer(timer)
        if self.queries == 1:
            return super().run_ns(timer, load, steps)
        at = self.tick - 1 - self._first
        keys = self._sums[_KEYS, at : at + steps]
        return cast("SpeculativeTimer", timer).verify_run_ns(
            load.n_decode, keys, self._longest_from(at, steps)
        )

    def timer(self, timer: StepTimer) -> StepTimer:
        """Return what times a single step of this cohort."""
        return cast("SpeculativeTimer", timer).plain if self.queries == 1 else timer
