"""What a composed step computes, in the terms in which it is timed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .decoding import DecodeCohort
    from .request import Request
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
    """

    __slots__ = (
        "context_sum", "contexts", "emitting", "longest", "n_decode", "prefill", "rejected", "sampled",
    )  # fmt: skip

    def __init__(self, needs_contexts: bool) -> None:
        self.n_decode = self.context_sum = self.longest = self.sampled = self.rejected = 0
        self.prefill: list[tuple[int, int]] = []
        self.contexts: list[int] | None = [] if needs_contexts else None
        self.emitting: list[Request] = []

    def add_cohort(self, cohort: DecodeCohort) -> int:
        """Take every member a step further; return the tokens that are computed and kept [tokens]."""
        tokens = cohort.advance(1)
        count, rows = cohort.count, cohort.count * cohort.queries
        self.n_decode += count
        self.sampled += rows
        self.rejected += rows - tokens
        context_sum, longest = cohort.keys_read
        self.context_sum += context_sum
        self.longest = max(self.longest, longest)
        if self.contexts is not None:
            self.contexts += cohort.contexts()
        return tokens

    def add_request(self, request: Request, tokens: int, queries: int, rules: Speculation | None) -> int:
        """Compute ``tokens`` of one request; return those that are kept [tokens].

        ``queries`` is what a decoding sequence computes; whoever computes as much while decoding is one of them.
        """
        before, kept, rows = request.num_computed_tokens, tokens, 1
        drafted = request.draft is not None and request.draft.proposes and tokens > 1
        decodes = tokens == queries and (drafted or queries == 1)
        if rules is not None and drafted:
            kept, rows = rules.verify(request, tokens), tokens
            self.rejected += tokens - kept
        after = request.num_computed_tokens = before + kept
        self.sampled += rows
        if decodes:
            self.n_decode += 1
            self.context_sum += before + tokens
            self.longest = max(self.longest, before + tokens)
            if self.contexts is not None:
                self.contexts.append(before + tokens)
        else:
            self.prefill.append((tokens, before))
        if after >= request.num_tokens + request.num_pending_tokens:
            self.emitting.append(request)
            if request.draft is not None and not drafted:
                request.draft.certain()
        return kept

    @property
    def counts(self) -> tuple[Any, ...]:
        """The arguments of ``StepTimer.step_ns``."""
        return self.n_decode, self.context_sum, self.longest, self.prefill, self.sampled, self.contexts
