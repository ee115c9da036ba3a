"""Routers: each does what its name says, sends only to replicas that are ready, and repeats itself."""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from itertools import takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st
from membound.sim.engine.request import Request
from membound.sim.policies import find_policy, policy_names
from membound.sim.router.base import Router

NAMES = policy_names("router")


@dataclass
class View:
    outstanding: list[int]
    ready: list[int]
    usage: list[float] = field(default_factory=list)

    def kv_usage(self, replica: int) -> float:
        return self.usage[replica] if self.usage else 0.0


def make(name: str, **options: object) -> Router:
    return find_policy("router", name, "cluster.router")(**options)


def request(index: int, hashes: tuple[int, ...] = (), session: int | None = None) -> Request:
    return Request(index, 0, 100, 10, block_hashes=hashes, session=session)


@pytest.mark.parametrize("name", NAMES)
def test_a_router_says_what_it_optimises_and_what_it_starves(name):
    policy = find_policy("router", name, "cluster.router")
    assert issubclass(policy, Router)
    for word in ("What it optimises", "What it starves", "Source"):
        assert word in " ".join((policy.__doc__ or "").split())


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_only_ready_replicas_are_chosen_and_the_same_again(name, data):
    n = data.draw(st.integers(1, 8))
    views = [
        View(
            data.draw(st.lists(st.integers(0, 5), min_size=n, max_size=n)),
            sorted(data.draw(st.sets(st.integers(0, n - 1), min_size=1))),
            data.draw(st.lists(st.floats(0, 1), min_size=n, max_size=n)),
        )
        for _ in range(data.draw(st.integers(1, 12)))
    ]
    requests = [
        request(at, tuple(range(data.draw(st.integers(0, 3)))), data.draw(st.none() | st.integers(0, 2)))
        for at in range(len(views))
    ]
    first, second = make(name), make(name)
    chosen = [first.route(each, view) for each, view in zip(requests, views, strict=True)]
    assert all(each in view.ready for each, view in zip(chosen, views, strict=True))
    assert chosen == [second.route(each, view) for each, view in zip(requests, views, strict=True)]


def test_round_robin_takes_turns_among_those_that_are_ready():
    router = make("round_robin")
    assert [router.route(request(i), View([0] * 4, [0, 1, 3])) for i in range(5)] == [0, 1, 3, 0, 1]


def test_least_outstanding_joins_the_shortest_line_and_equals_take_turns():
    router = make("least_outstanding")
    assert router.route(request(0), View([2, 1, 3], [0, 1, 2])) == 1
    assert [router.route(request(i), View([1, 1, 1], [0, 1, 2])) for i in range(3)] == [2, 0, 1]


def test_least_kv_looks_at_memory_first():
    assert make("least_kv").route(request(0), View([0, 9, 9], [0, 1, 2], [0.9, 0.2, 0.2])) == 1


def test_random_is_even_and_belongs_to_the_request():
    router, view = make("random", seed=3), View([0] * 4, [0, 1, 2, 3])
    counts = Counter(router.route(request(i), view) for i in range(4000))
    assert all(abs(count - 1000) < 5 * (4000 * 0.25 * 0.75) ** 0.5 for count in counts.values())
    assert make("random", seed=3).route(request(77), view) == router.route(request(77), view)


def test_power_of_two_never_takes_the_fullest():
    router, view = make("power_of_two"), View([9, 0, 0, 0], [0, 1, 2, 3])
    assert 0 not in {router.route(request(i), view) for i in range(200)}
    assert len({router.route(request(i), View([0] * 4, [0, 1, 2, 3])) for i in range(200)}) == 4


def test_a_session_stays_where_it_began_until_its_replica_is_gone():
    router = make("session_affinity")
    home = router.route(request(0, session=7), View([1, 0], [0, 1]))
    assert home == 1
    assert router.route(request(1, session=7), View([0, 9], [0, 1])) == home
    router.gone(home)
    assert router.route(request(2, session=7), View([0, 9], [0, 1])) == 0


def test_a_seen_prefix_draws_its_like_until_the_load_is_uneven():
    router = make("prefix_affinity", cache_threshold=0.5, balance_abs_threshold=3)
    even = View([0, 0, 0], [0, 1, 2])
    home = router.route(request(0, (1, 2, 3)), even)
    assert router.route(request(1, (1, 2, 9)), even) == home
    assert router.route(request(2, (1, 8, 19)), even) != home, "a third is below the threshold"
    crowded = View([0, 0, 0], [0, 1, 2])
    crowded.outstanding[home] = 4
    assert router.route(request(3, (1, 2, 3)), crowded) != home


def chained(prompt: list[int]) -> tuple[int, ...]:
    """Return keys of which each stands for all of the prompt up to it."""
    keys = [1]
    for content in prompt:
        keys.append(keys[-1] * 3 + content)
    return tuple(keys[1:])


class KeyByKey:
    """What prefix affinity remembers, said key by key: who was sent each last, in the order of that."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.seen: OrderedDict[int, int] = OrderedDict()

    def home(self, keys: tuple[int, ...]) -> int | None:
        known = list(takewhile(self.seen.__contains__, keys))
        return self.seen[known[-1]] if known and 2 * len(known) >= len(keys) else None

    def send(self, keys: tuple[int, ...], replica: int) -> None:
        for key in keys:
            self.seen[key] = replica
            self.seen.move_to_end(key)
        while len(self.seen) > self.most:
            self.seen.popitem(last=False)


@given(
    st.lists(st.lists(st.integers(0, 1), max_size=7).map(chained), max_size=30),
    st.integers(1, 12),
    st.integers(0, 29),
)
def test_prefixes_are_remembered_as_if_key_by_key(
    prompts: list[tuple[int, ...]], most: int, failing: int
) -> None:
    router, plain = make("prefix_affinity", max_tree_size=most, balance_abs_threshold=999), KeyByKey(most)
    view = View([0, 0, 0], [0, 1, 2])
    for at, keys in enumerate(prompts):
        home = plain.home(keys)
        chosen = router.route(request(at, keys), view)
        assert home is None or chosen == home
        view.outstanding[chosen] += 1
        plain.send(keys, chosen)
        if at == failing:
            router.gone(chosen)
            plain.seen = OrderedDict((key, home) for key, home in plain.seen.items() if home != chosen)
    for keys in prompts:
        known = router._match(request(99, keys), view)
        assert known == plain.home(keys)
