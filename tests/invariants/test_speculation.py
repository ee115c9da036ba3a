"""Drafted tokens change how long a request takes, never what is delivered, kept or counted."""

from __future__ import annotations

import os

from hypothesis import given, settings
from membound.sim.engine.request import Status

from .harness import Case, run
from .strategies import drafting_cases
from .test_conformance import Auditor

EXAMPLES = int(os.environ.get("MEMBOUND_EXAMPLES", "50"))
some = settings(max_examples=EXAMPLES, deadline=None)


@some
@given(case=drafting_cases())
def test_taking_verified_steps_at_once_changes_nothing(case: Case) -> None:
    plain, _ = run(case, fast_forward=False, cohort=False)
    assert run(case, fast_forward=False)[0] == plain
    assert run(case)[0] == plain


@some
@given(case=drafting_cases())
def test_nothing_is_lost_when_drafted_tokens_are_rejected(case: Case) -> None:
    auditor = Auditor(case)
    record, engine = run(case, fast_forward=False, cohort=False, observer=auditor)
    assert not engine.running
    assert not engine.waiting
    assert engine.allocator.free_blocks == engine.allocator.num_blocks
    assert engine.allocator.held_blocks == engine.live_tokens == 0
    rules = engine.speculation
    assert rules is not None
    assert 0 <= rules.num_accepted_tokens <= rules.num_draft_tokens
    served = [status == Status.COMPLETED for status in record["requests"]["status"]]
    emissions = record["itl"][0] + sum(served)
    tokens = sum(row["output_tokens"] for row, done in zip(case.requests, served, strict=True) if done)
    assert emissions <= tokens <= emissions + rules.num_accepted_tokens
