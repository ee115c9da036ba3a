"""What a composed step computes, in the terms in which it is timed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from ...hwmodels.cascade import FEWEST_SEQUENCES

if TYPE_CHECKING:
    from ...hwmodels.cascade import SharedPrefix
    from ..kvcache.paged import PagedAllocator
    from .decoding import DecodeCohort
    from .engine import Engine
    from .request import Request
    from .selection import PromptSelection
    from .speculative import Speculation


class StepLoad:
    """The counts of one step, added up part by part.

    Attributes
    ----------
    n_decode, context_sum, longest : sequences that decode, the keys they read, and the longest's [tokens]
    prefill : (new tokens, tokens cached before) of every other sequence
    sampled : rows that reach the LM head
    contexts : keys that each decoding sequence reads, where the timer needs them
    rejected : tokens computed that are drafted and not accepted [tokens]
    emitting : requests counted one by one that get a token
    selecting : requests whose prompt ends, so that a part of its KV is dropped behind the step
    selected : entries of their prompts, and those of them that are kept [tokens]
    shared : leading keys that all sequences that decode read together, once [tokens]
    """

    __slots__ = (
        "context_sum", "contexts", "emitting", "longest", "n_decode", "prefill", "rejected", "sampled",
        "selected", "selecting", "shared",
    )  # fmt: skip

    def __init__(self, needs_contexts: bool) -> None:
        self.n_decode = self.context_sum = self.longest = self.sampled = self.rejected = 0
        self.prefill: list[tuple[int, int]] = []
        self.contexts: list[int] | None = [] if needs_contexts else None
        self.emitting: list[Request] = []
        self.selecting: list[Request] = []
        self.selected = (0, 0)
        self.shared = 0

    def add_cohort(self, cohort: DecodeCohort) -> int:
        """Take every member a step further; return the tokens that are computed and kept [tokens]."""
        tokens = cohort.advance(1)
        count = cohort.count
        rows = count * cohort.queries
        self.n_decode += count
        self.sampled += rows
        self.rejected += rows - tokens
        context_sum, longest = cohort.keys_read
        self.context_sum += context_sum
        if longest > self.longest:
            self.longest = longest
        if self.contexts is not None:
            self.contexts += cohort.contexts()
        return tokens

    def add_request(self, request: Request, tokens: int, queries: int, rules: Speculation | None) -> int:
        """Compute ``tokens`` of one request; return those that are kept [tokens].

        ``queries`` is what a decoding sequence computes; whoever computes as much while decoding is one of them.
        """
        before, kept, rows = request.num_computed_tokens, tokens, 1
        held = before - request.num_evicted_tokens
        drafted = request.draft is not None and request.draft.proposes and tokens > 1
        decodes = tokens == queries and (drafted or queries == 1)
        if rules is not None and drafted:
            kept, rows = rules.verify(request, tokens), tokens
            self.rejected += tokens - kept
        after = request.num_computed_tokens = before + kept
        self.sampled += rows
        if decodes:
            self.n_decode += 1
            self.context_sum += held + tokens
            self.longest = max(self.longest, held + tokens)
            if self.contexts is not None:
                self.contexts.append(held + tokens)
        else:
            self.prefill.append((tokens, held))
        if after >= request.num_tokens + request.num_pending_tokens:
            self.emitting.append(request)
            if request.draft is not None and not drafted:
                request.draft.certain()
        return kept

    def complete(self, engine: Engine) -> None:
        """Note what depends on all who are in the step: prompts that end with it, a prefix that all share."""
        if engine.selection is not None:
            self.select(engine.selection)
        if engine.shared_prefix is not None:
            self.share(engine, engine.shared_prefix)

    def select(self, selection: PromptSelection) -> None:
        """Drop what is not kept of the prompts that end with this step; it is still read in it."""
        for request in self.emitting:
            evicted = request.input_tokens - selection.kept(request.input_tokens)
            if not evicted or request.num_evicted_tokens or request.max_tokens == 1:
                continue
            request.num_evicted_tokens = evicted
            self.selecting.append(request)
            keys, kept = self.selected
            self.selected = (keys + request.input_tokens, kept + request.input_tokens - evicted)

    def drop(self, engine: Engine) -> None:
        """Give back what the prompts that end do not keep: steps composed from now on run behind this one."""
        for request in self.selecting:
            engine.live_tokens -= request.num_evicted_tokens
            cast("PagedAllocator", engine.allocator).shrink(request)

    def share(self, engine: Engine, prefix: SharedPrefix) -> None:
        """Read the blocks that everybody holds once for all who decode, where that is what vLLM would do."""
        if self.n_decode < FEWEST_SEQUENCES:
            return
        pool, everybody = cast("PagedAllocator", engine.allocator), len(engine.running) + engine.padding.count
        shared = pool.shared_blocks(engine.running[0], everybody) * pool.block_size
        sequences = self.n_decode + len(self.prefill)
        if prefix.chosen(shared, sequences, decodes=not self.prefill):
            self.shared = shared

    @property
    def counts(self) -> tuple[Any, ...]:
        """The arguments of ``StepTimer.step_ns``."""
        counts = (self.n_decode, self.context_sum, self.longest, self.prefill, self.sampled, self.contexts)
        if self.shared:
            return (*counts, None, self.shared)
        return (*counts, self.selected) if self.selecting else counts
