"""Adds up what steps were spent on that verify drafted tokens, drafting apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ...hwmodels.account import STEP_CAUSES, StepColumns
from ...hwmodels.draftaccount import account_speculative
from .accounting import StepAccountant, columns_of
from .steprow import context_tokens, unfolded

if TYPE_CHECKING:
    from ...hwmodels.power import PowerModel
    from ...hwmodels.speculation import SpeculativeStepModel
    from ..engine.speculative import Speculation
    from .steprow import StepRow

Int64Array = npt.NDArray[np.int64]


class DraftAccountant(StepAccountant):
    """Attributes steps of which some verify drafted tokens and others, in batches too large to draft for, do not.

    Attributes
    ----------
    draft_ns : time that drafting took [ns]
    """

    def __init__(
        self, model: SpeculativeStepModel, *, keep_steps: bool = False, power: PowerModel | None = None
    ) -> None:
        super().__init__(model.plain, keep_steps=keep_steps, power=power)
        self.timer = self.speculative = model
        self.draft_ns = 0
        self._draft_ns: Int64Array = np.zeros(0, dtype=np.int64)
        self._kinds: list[npt.NDArray[np.bool_]] = []

    def _account(self, rows: Sequence[StepRow], steps: Int64Array, durations_ns: Int64Array) -> Int64Array:
        """Add up what the steps of either kind did; return each one's time by cause, shape (steps, causes) [ns]."""
        drafting = np.fromiter((row.queries > 1 for row in rows), np.bool_, len(rows))
        causes_ns = np.zeros((len(durations_ns), len(STEP_CAUSES)), dtype=np.int64)
        self._draft_ns = np.zeros(len(durations_ns), dtype=np.int64)
        self._kinds.clear()
        for verifies in (True, False):
            which = drafting == verifies
            of_step = np.repeat(which, steps)
            if not which.any():
                continue
            self._kinds.append(of_step)
            chosen = [row for row, taken in zip(rows, which.tolist(), strict=True) if taken]
            part = chosen, steps[which], durations_ns[of_step]
            if not verifies:
                causes_ns[of_step] = super()._account(*part)
                continue
            columns = _one_by_one(*part, self.speculative.needs_contexts)
            found, self._draft_ns[of_step] = account_speculative(self.speculative, columns)
            causes_ns[of_step] = self._add_up(found)
        self.draft_ns += int(self._draft_ns.sum())
        return causes_ns

    def _more_columns(self) -> dict[str, Int64Array]:
        found = {"draft_ns": self._draft_ns}
        for of_step, active in zip(self._kinds, self._active, strict=True):
            for name, nanoseconds in active.items():
                found.setdefault(name, np.zeros(len(of_step), dtype=np.int64))[of_step] = nanoseconds
        return found


def _one_by_one(
    rows: Sequence[StepRow], steps: Int64Array, durations_ns: Int64Array, needs_contexts: bool
) -> StepColumns:
    """Return a row for every step: contexts do not grow evenly where drafted tokens are accepted."""
    whole = columns_of(rows, steps, durations_ns, needs_contexts)
    owner = np.repeat(np.arange(len(rows)), steps)
    first = np.cumsum(steps) - steps
    chunks = np.diff(whole.prefill_starts)[owner]
    queries = np.fromiter((row.queries for row in rows), np.int64, len(rows))
    rejected = (whole.n_decode * queries)[owner] - unfolded(rows, steps, "tokens")
    rejected[first] = np.fromiter((row.rejected for row in rows), np.int64, len(rows))
    longest = unfolded(rows, steps, "longest")
    longest[first] = whole.longest
    return replace(
        whole,
        steps=np.ones(len(owner), dtype=np.int64),
        n_decode=whole.n_decode[owner],
        context_sum=context_tokens(rows, steps),
        longest=longest,
        sampled=whole.sampled[owner],
        prefill_starts=np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(chunks))),
        contexts=None if whole.contexts is None else [whole.contexts[row] for row in owner.tolist()],
        rejected=rejected.astype(np.float64),
    )


def speculative_figures(
    rules: Sequence[Speculation], accountants: Sequence[StepAccountant], busy_ns: int
) -> Mapping[str, Any] | None:
    """Return what speculation did on all replicas, under vLLM's names; None without it.

    ``num_drafts`` rounds in which ``num_draft_tokens`` were verified and ``num_accepted_tokens`` accepted;
    ``mean_acceptance_length`` tokens of a round, the certain one included; ``draft_time_share`` of busy time.
    """
    if not rules:
        return None
    drafts, accepted = sum(each.num_drafts for each in rules), sum(each.num_accepted_tokens for each in rules)
    spent = sum(each.draft_ns for each in accountants if isinstance(each, DraftAccountant))
    return {
        "num_drafts": drafts,
        "num_draft_tokens": sum(each.num_draft_tokens for each in rules),
        "num_accepted_tokens": accepted,
        "mean_acceptance_length": 1 + accepted / drafts if drafts else None,
        "draft_time_share": spent / busy_ns if busy_ns else None,
        "level": "unvalidated",
    }
