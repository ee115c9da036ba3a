"""Replacement policies of KV tiers against plain models of what they promise."""

from __future__ import annotations

from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from membound.sim.policies import find_policy, policy_names
from membound.sim.tierpolicy.base import TierPolicy

NAMES = policy_names("tierpolicy")
USES = st.lists(st.integers(0, 12), max_size=120)


def made(name: str, capacity: int) -> TierPolicy:
    return find_policy("tierpolicy", name, "kv_cache.tiers.policy")(capacity)


def holds(policy: TierPolicy, key: int) -> bool:
    return policy.reach([key], 0, 1) == 1


def use(policy: TierPolicy, key: int) -> int | None:
    """Touch a key that is held, else take it in; return what went for it."""
    if holds(policy, key):
        return policy.touch([key], 0, 1)
    added, gone = policy.add([key], 0, 1)
    assert added == 1
    went = [keys[at] for keys, start, stop in gone for at in range(start, stop)]
    assert len(went) <= 1
    return went[0] if went else None


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
        assert {k for k in range(13) if holds(policy, k)} == held


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


def chained(prompt: list[int]) -> list[int]:
    """Return keys of which each stands for all of the prompt up to it."""
    keys = [1]
    for content in prompt:
        keys.append(keys[-1] * 3 + content)
    return keys[1:]


PROMPTS = st.lists(st.integers(0, 1), min_size=1, max_size=8).map(chained)
SPANS = st.tuples(PROMPTS, st.booleans(), st.integers(0, 8), st.integers(0, 8))


@given(uses=st.lists(SPANS, max_size=40), capacity=st.integers(1, 14))
def test_lru_treats_neighbours_in_a_prompt_as_if_each_came_by_itself_the_last_first(
    uses: list[tuple[list[int], bool, int, int]], capacity: int
) -> None:
    policy, order = made("lru", capacity), OrderedDict[int, None]()
    for keys, taken_in, start, length in uses:
        stop = min(start + length, len(keys))
        start = min(start, stop)
        reached = next((at for at in range(start, stop) if keys[at] not in order), stop)
        assert policy.reach(keys, start, stop) == reached
        if taken_in:
            added, gone = policy.add(keys, start, stop)
            wanted: list[int] = []
            new = 0
            for key in reversed(keys[start:stop]):
                if key not in order:
                    new, order[key] = new + 1, None
                    wanted += [order.popitem(last=False)[0]] if len(order) > capacity else []
            assert added == new
            assert [each[at] for each, low, high in gone for at in range(high - 1, low - 1, -1)] == wanted
        else:
            policy.touch(keys, start, stop)
            for key in reversed(keys[start:stop]):
                if key in order:
                    order.move_to_end(key)
        assert len(policy) == len(order)


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
        kept[name] = sum(holds(policy, key) for key in range(4))
    assert kept["lru"] == 0
    assert kept["two_q"] == 4
