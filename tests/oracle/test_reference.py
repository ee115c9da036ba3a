"""The product takes the same steps as a second, plain implementation of the scheduler's rules, on random cases."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import given, settings

from .cases import cases
from .reference import Reference
from .replay import difference

EXAMPLES = int(os.environ.get("MEMBOUND_EXAMPLES", "50"))


@settings(max_examples=EXAMPLES, deadline=None)
@given(case=cases())
def test_every_step_is_that_of_the_rules(case: dict[str, Any]) -> None:
    steps, summary = Reference(case).run()
    for fast_forward, cohort in ((True, True), (False, True), (False, False)):
        found, _ = difference(case, steps, summary, fast_forward=fast_forward, cohort=cohort)
        assert found is None, f"fast_forward={fast_forward} cohort={cohort}: {found}"


@settings(max_examples=EXAMPLES, deadline=None)
@given(case=cases(prefix_caching=True))
def test_content_that_nobody_asks_for_need_not_be_named(case: dict[str, Any]) -> None:
    reference = Reference(case)
    steps, summary = reference.run()
    found, _ = difference(case, steps, summary, private=True)
    assert found is None, found
