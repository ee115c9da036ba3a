"""Taking steps at once, or requests together, changes nothing that is recorded, to the last digit."""

from __future__ import annotations

import os

from hypothesis import given, settings
from membound.sim.engine.request import Status

from .harness import Case, run
from .strategies import cases

EXAMPLES = int(os.environ.get("MEMBOUND_EXAMPLES", "50"))


@settings(max_examples=EXAMPLES, deadline=None)
@given(case=cases())
def test_fast_forward_equals_step_by_step(case: Case) -> None:
    """The cohort and the jumps are only faster ways to the same record."""
    plain, _ = run(case, fast_forward=False, cohort=False)
    together, _ = run(case, fast_forward=False)
    fast, _ = run(case)
    assert together == plain
    assert fast == plain


@settings(max_examples=EXAMPLES, deadline=None)
@given(case=cases())
def test_requests_tokens_and_blocks_are_conserved(case: Case) -> None:
    """Every request ends once, with all its tokens; every block is free in the end; time runs forwards."""
    record, engine = run(case)
    requests = record["requests"]
    assert requests["index"] == list(range(len(case.requests)))
    assert set(requests["status"]) <= {Status.COMPLETED, Status.REJECTED}
    assert engine.allocator.free_blocks == engine.allocator.num_blocks
    assert engine.allocator.held_blocks == engine.live_tokens == 0
    emitted = 0
    names = ("status", "arrival_ns", "first_scheduled_ns", "first_token_ns", "last_token_ns", "output_tokens")
    for status, arrival, scheduled, first, last, tokens in zip(
        *(requests[name] for name in names), strict=True
    ):
        if status == Status.COMPLETED:
            emitted += tokens - 1
            assert arrival <= scheduled < first <= last
            assert (first == last) == (tokens == 1)
    assert record["itl"][0] == emitted
    assert sum(record["limiter_ns"].values()) == record["busy_ns"]
    assert sum(record["itl_by_position"][1]) == emitted


@settings(max_examples=EXAMPLES, deadline=None)
@given(case=cases(scheduler="vllm_v1", allocator="paged"))
def test_prefix_caching_only_ever_saves_work_on_first_sight(case: Case) -> None:
    """No request finds more than its shareable prefix at its first admission, and never all of its prompt."""
    record, _ = run(case)
    for index, cached in enumerate(record["requests"]["num_cached_tokens"]):
        asked = case.requests[index]
        assert cached <= len(asked.get("block_hashes", ())) * case.block_size
        assert cached < asked["input_tokens"]
