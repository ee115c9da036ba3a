"""What a stack of KV tiers finds, it restores, whatever the restore itself pushes out of a tier."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from membound.sim.policies import find_policy, policy_names
from membound.sim.tiers.mover import Mover
from membound.sim.tiers.tiers import Tier, TierStack

from ..invariants.harness import route_of

KEYS = tuple(range(6))
TIERS = st.lists(
    st.tuples(st.sampled_from(policy_names("tierpolicy")), st.integers(1, 4), st.booleans()),
    min_size=1,
    max_size=3,
)
USES = st.lists(
    st.tuples(st.sampled_from(["computed", "evicted", "restored"]), st.integers(0, 5), st.integers(1, 6))
)


def stack(tiers: list[tuple[str, int, bool]]) -> TierStack:
    return TierStack(
        [
            Tier(f"t{at}", route_of(at + 1), find_policy("tierpolicy", name, "")(size), through)
            for at, (name, size, through) in enumerate(tiers)
        ],
        Mover(4, layerwise=True),
    )


@given(tiers=TIERS, uses=USES)
def test_every_block_that_is_found_is_restored_from_one_tier(
    tiers: list[tuple[str, int, bool]], uses: list[tuple[str, int, int]]
) -> None:
    kept = stack(tiers)
    for use, start, count in uses:
        stop = min(start + count, len(KEYS))
        if use == "computed":
            kept.computed(KEYS, start, stop)
        elif use == "evicted":
            kept.evicted([(KEYS, start, stop)])
        else:
            found, before = kept.found(KEYS, start, stop), sum(tier.hit_blocks for tier in kept.tiers)
            kept.restore(KEYS, start, start + found)
            assert sum(tier.hit_blocks for tier in kept.tiers) - before == found
        assert all(len(tier.policy) <= size for tier, (_, size, _) in zip(kept.tiers, tiers, strict=True))
