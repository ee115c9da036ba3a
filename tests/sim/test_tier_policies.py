"""Replacement policies of KV tiers against plain models of what they promise."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from membound.sim.policies import find_policy, policy_names
from membound.sim.tierpolicy.base import TierPolicy

NAMES = policy_names("tierpolicy")
USES = st.lists(st.integers(0, 12), max_size=120)


def made(name: str, capacity: int) -> TierPolicy:
    return find_policy("tierpolicy", name, "kv_cache.tiers.policy")(capacity)


def use(policy: TierPolicy, key: int) -> int | None:
    """Touch a key that is held, else take it in; return what went for it."""
    if key in policy:
        return policy.touch(key)
    return policy.add(key)


@pytest.mark.parametrize("name", NAMES)
@given(uses=USES, capacity=st.integers(1, 9))
def test_a_policy_never_holds_more_than_fits_and_loses_only_what_it_says(
    name: str, uses: list[int], capacity: int
) -> None:
    policy, held = made(name, capacity), set[int]()
    for key in uses:
        gone = use(policy, key)
        held.add(key)
        if gone is not None:
            assert len(held) == capacity + 1, "nothing goes while there is room"
            assert gone != key
            held.remove(gone)
        assert len(policy) == len(held) <= capacity
        assert {k for k in range(13) if k in policy} == held


@given(uses=USES, capacity=st.integers(1, 9))
def test_lru_lets_go_of_what_was_used_longest_ago(uses: list[int], capacity: int) -> None:
    policy, last = made("lru", capacity), dict[int, int]()
    for time, key in enumerate(uses):
        oldest = min(last, key=last.__getitem__, default=None)
        gone = use(policy, key)
        if gone is not None:
            assert gone == oldest
            del last[gone]
        last[key] = time


@given(uses=USES, capacity=st.integers(1, 9))
def test_lfu_lets_go_of_what_was_used_least_and_of_equals_longest_ago(uses: list[int], capacity: int) -> None:
    policy, counts = made("lfu", capacity), dict[int, tuple[int, int]]()
    for time, key in enumerate(uses):
        least = min(counts, key=counts.__getitem__, default=None)
        gone = use(policy, key)
        if gone is not None:
            assert gone == least
            del counts[gone]
        counts[key] = counts.get(key, (0, 0))[0] + 1, time


def test_2q_keeps_what_comes_back_through_a_scan_that_lru_forgets_it_in() -> None:
    kept = {}
    for name in NAMES:
        policy = made(name, 20)
        for key in [*range(4), *range(100, 120), *range(4), *range(200, 240)]:
            use(policy, key)
        kept[name] = sum(key in policy for key in range(4))
    assert kept["lru"] == 0
    assert kept["two_q"] == 4
