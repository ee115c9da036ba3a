"""A token-prefix tree: what it finds against block hashing, what it keeps once, and what it evicts first."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from membound.hwmodels.errors import MemboundError
from membound.sim.engine.request import Request
from membound.sim.kvcache.paged import PagedAllocator
from membound.sim.kvcache.radix import RadixAllocator
from membound.sim.run import simulate
from membound.sim.scenario import parse_scenario

BLOCK = 4


def asks(index: int, prompt: Sequence[int], page: int, answer: int = 1) -> Request:
    """Return a request with this prompt: the key of a page is a hash of all tokens up to its end."""
    chained = list(accumulate(prompt, lambda before, token: hash((before, token)), initial=0))
    keys = [chained[end] for end in range(page, len(prompt) + 1, page)]
    return Request(index, 0, len(prompt), answer, block_hashes=keys)


def enter(allocator: RadixAllocator | PagedAllocator, request: Request) -> int:
    """Compute a whole prompt and return the tokens that were found [tokens]."""
    found = allocator.lookup(request)
    assert allocator.admit(request, request.input_tokens, found)
    request.num_computed_tokens = request.input_tokens
    return found


def leave(allocator: RadixAllocator | PagedAllocator, request: Request) -> None:
    request.num_output_tokens = request.output_tokens
    request.num_computed_tokens = request.num_tokens_needed
    allocator.free(request, request.num_tokens_needed)


PROMPTS = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=21), min_size=1, max_size=12)


@given(PROMPTS, st.randoms(use_true_random=False))
def test_a_tree_finds_what_block_hashing_finds_and_the_rest_of_the_last_block(
    prompts: list[list[int]], coin: Any
) -> None:
    """Whoever runs beside whom: never less, and rounded down to blocks the same."""
    sizes = {"blocks": BLOCK, "pages": BLOCK, "tokens": 1}
    pools = {
        "blocks": PagedAllocator(1000, BLOCK), "pages": RadixAllocator(1000, BLOCK), "tokens": RadixAllocator(4000),
    }  # fmt: skip
    running: list[dict[str, Request]] = []
    for index, prompt in enumerate(prompts):
        asked = {name: asks(index, prompt, size) for name, size in sizes.items()}
        found = {name: enter(pools[name], request) for name, request in asked.items()}
        assert found["blocks"] == found["pages"] == found["tokens"] // BLOCK * BLOCK <= found["tokens"]
        running.append(asked)
        while running and coin.random() < 0.4:
            for name, request in running.pop(coin.randrange(len(running))).items():
                leave(pools[name], request)
    for left in running:
        for name, request in left.items():
            leave(pools[name], request)
    assert all(pool.free_blocks == pool.num_blocks and not pool.held_blocks for pool in pools.values())


@given(PROMPTS)
def test_with_prompts_of_whole_blocks_pages_of_a_block_find_the_same_hit_tokens(
    prompts: list[list[int]],
) -> None:
    blocks, pages = PagedAllocator(1000, BLOCK), RadixAllocator(1000, BLOCK)
    for index, prompt in enumerate(prompts):
        for pool in (blocks, pages):
            whole = asks(index, prompt * BLOCK, BLOCK)
            enter(pool, whole)
            leave(pool, whole)
    assert (blocks.hit_tokens, blocks.queried_tokens) == (pages.hit_tokens, pages.queried_tokens)


def test_hits_are_counted_by_the_token_and_the_last_one_is_always_computed() -> None:
    pool = RadixAllocator(100)
    enter(pool, asks(0, range(10), 1))
    assert enter(pool, asks(1, range(10), 1)) == 9
    assert enter(pool, asks(2, [0, 1, 2, 7], 1)) == 3
    assert (pool.queried_tokens, pool.hit_tokens) == (24, 12)


def test_what_two_requests_compute_at_once_is_kept_once() -> None:
    """Neither has found the other's prompt: the second copy is given back once it is there."""
    pool = RadixAllocator(100)
    for index in range(2):
        assert pool.admit(asks(index, range(10), 1), 10, 0)
    assert (pool.free_blocks, pool.held_blocks) == (90, 20)


def test_the_leaf_used_longest_ago_goes_first_and_its_stem_after_all_its_leaves() -> None:
    """Two prompts of a stem of 4 and leaves of 3, in a pool of 12: room for a third is made of the older leaf."""
    pool = RadixAllocator(12)
    stem = [1, 2, 3, 4]
    older, newer = asks(0, [*stem, 5, 5, 5], 1), asks(1, [*stem, 6, 6, 6], 1)
    for request in (older, newer):
        enter(pool, request)
        leave(pool, request)
    assert pool.free_blocks == 12
    other = asks(2, [9, 9, 9], 1)
    enter(pool, other)
    assert pool.lookup(asks(3, [*stem, 5, 5, 5], 1)) == 4
    assert pool.lookup(asks(4, [*stem, 6, 6, 6, 6], 1)) == 7
    more = asks(5, [8] * 3, 1)
    enter(pool, more)
    assert pool.lookup(asks(6, [*stem, 6, 6, 6, 6], 1)) == 4
    enter(pool, asks(7, [7] * 6, 1))
    assert pool.lookup(asks(8, [*stem, 6, 6, 6, 6], 1)) == 0
    assert pool.free_blocks == 0
    assert not pool.admit(asks(9, [5], 1), 1, 0), "what is in use is never evicted"


def test_an_answer_enters_the_tree_when_it_ends_and_the_next_turn_finds_it() -> None:
    pool, talk = RadixAllocator(100), list(range(20))
    first = asks(0, talk, 1)
    first.input_tokens, first.output_tokens = 12, 9
    enter(pool, first)
    assert pool.lookup(asks(1, talk, 1)) == 12
    leave(pool, first)
    assert pool.lookup(asks(1, [*talk, 1], 1)) == 20


def test_of_a_preempted_request_the_prompt_is_found_again_and_not_what_it_decoded() -> None:
    pool = RadixAllocator(100)
    request = Request(0, 0, 10, 30)
    enter(pool, request)
    for _ in range(5):
        request.num_output_tokens += 1
        assert pool.append(request, request.num_tokens)
        request.num_computed_tokens += 1
    pool.free(request, request.num_computed_tokens)
    assert pool.lookup(request) == 10


def chats(*sets: str, engine: str = "vllm-0.24") -> dict[str, Any]:
    workload = {
        "arrivals": {"kind": "poisson", "rate_per_s": 4}, "input_tokens": 206, "output_tokens": 100, "requests": 60,
        "sessions": {"prompts_per_group": 6, "system_prompt_tokens": 1001},
    }  # fmt: skip
    scenario = {"device": "h100_sxm", "model": "llama-3.1-8b", "engine": engine, "workload": workload}
    return simulate(parse_scenario(scenario, list(sets))).summary()


def test_a_run_finds_each_known_token_and_pages_are_of_one_token_unless_said() -> None:
    """Six prompts of 1,207 tokens, asked ten times each: the tree finds all but the last token of what comes again.

    Blocks find 75 of the 75.4; what is common to different prompts is drawn in whole blocks, 62 of them.
    """
    blocks, tokens = chats(), chats("kv_cache.allocator=radix")
    pages = chats("kv_cache.allocator=radix", "kv_cache.block_size=16")
    asked, first = 60 * 1207, 5 * 62 * 16
    for found, again in ((blocks, 1200), (pages, 1200), (tokens, 1206)):
        assert found["kv"]["prefix_hit_rate"] == pytest.approx((first + 54 * again) / asked, abs=1e-9)
    room = [found["memory"]["kv_capacity_tokens"] for found in (blocks, tokens)]
    assert room[1] == pytest.approx(room[0], abs=16)


def test_tiers_behind_a_tree_are_refused_in_a_line() -> None:
    with pytest.raises(
        MemboundError, match=r"kv_cache\.allocator: radix has neither tiers nor swap"
    ) as caught:
        chats("kv_cache.allocator=radix", "kv_cache.tiers=[{kind: dram}]")
    assert "\n" not in str(caught.value)
