"""Contiguous memory: where slabs lie, what they waste, and that nothing overlaps or is lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from membound.sim.engine.request import Request
from membound.sim.kvcache.buddy import BuddyAllocator
from membound.sim.kvcache.contiguous import ContiguousAllocator
from membound.sim.kvcache.contiguous_known import ContiguousKnownAllocator
from membound.sim.kvcache.slabs import SlabAllocator

ALL = (ContiguousAllocator, ContiguousKnownAllocator, BuddyAllocator)
each = pytest.mark.parametrize("policy", ALL, ids=lambda policy: policy.name)


def make(policy: type[SlabAllocator], num_blocks: int, longest: int = 64) -> SlabAllocator:
    return policy(num_blocks, 4, max_model_len=longest)


@each
@given(data=st.data())
def test_slabs_lie_in_the_pool_and_never_overlap(policy, data):
    allocator = make(policy, data.draw(st.integers(1, 300)))
    held: list[Request] = []
    for index in range(data.draw(st.integers(1, 40))):
        if held and data.draw(st.booleans()):
            allocator.free(held.pop(data.draw(st.integers(0, len(held) - 1))), 0)
        request = Request(index, 0, data.draw(st.integers(1, 40)), data.draw(st.integers(1, 24)))
        if allocator.admit(request, request.input_tokens, 0):
            held.append(request)
        taken = [block for each in held for block in range(each.kv.start, sum(each.kv))]
        assert len(set(taken)) == len(taken) == allocator.held_blocks
        assert all(0 <= block < allocator.num_blocks for block in taken)
        assert allocator.free_blocks == allocator.num_blocks - len(taken)
        for one in held:
            assert one.kv.blocks * 4 >= one.num_tokens_needed
    for request in held:
        allocator.free(request, 0)
    assert allocator.place(allocator.largest()) is not None, "what is free again is whole again"


@each
@given(data=st.data())
def test_whoever_fits_an_empty_pool_is_admitted_to_it(policy, data):
    allocator = make(policy, data.draw(st.integers(1, 300)))
    request = Request(0, 0, data.draw(st.integers(1, 900)), data.draw(st.integers(1, 24)))
    fits = allocator.fits(request.num_tokens_needed)
    assert allocator.admit(request, request.input_tokens, 0) is fits


def test_a_slab_is_the_longest_sequence_what_is_needed_or_the_power_of_two_above():
    assert [make(policy, 64).blocks_of(17) for policy in ALL] == [16, 5, 8]


def test_known_lengths_scatter_the_free_room():
    """Slabs of 3 blocks; every second one ends: half of the pool is free and no slab of 4 fits."""
    allocator = make(ContiguousKnownAllocator, 30)
    requests = [Request(index, 0, 12, 1) for index in range(10)]
    assert all(allocator.admit(request, 12, 0) for request in requests)
    for request in requests[::2]:
        allocator.free(request, 0)
    assert allocator.free_blocks == 15
    assert not allocator.admit(Request(10, 0, 13, 1), 13, 0)
    assert allocator.admit(Request(11, 0, 12, 1), 12, 0)


def test_buddies_join_again():
    """Four blocks split to single ones; freed in any order they are one slab of four."""
    allocator = make(BuddyAllocator, 4)
    requests = [Request(index, 0, 4, 1) for index in range(4)]
    assert all(allocator.admit(request, 4, 0) for request in requests)
    for index in (2, 0, 3, 1):
        assert not allocator.admit(Request(9, 0, 16, 1), 16, 0)
        allocator.free(requests[index], 0)
    assert allocator.admit(Request(9, 0, 16, 1), 16, 0)


def test_a_pool_beyond_its_largest_power_of_two_serves_small_ones_only():
    allocator = make(BuddyAllocator, 40)
    assert allocator.largest() == 32
    assert not allocator.fits(33 * 4)
    assert allocator.fits(32 * 4)
