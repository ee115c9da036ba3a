"""Laws of fair rates: within the capacities, max-min fair, and the same in any order."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from membound.sim.device.sharing import fair_rates

CAPACITIES = {"hbm": 1.0, "compute": 1.0, "link": 0.5}
law = settings(deadline=None)

shares = st.one_of(st.sampled_from([0.0, 0.25, 0.5, 1.0]), st.floats(0.0, 1.0))
loads = st.dictionaries(st.sampled_from(sorted(CAPACITIES)), shares).map(
    lambda load: {name: share * CAPACITIES[name] for name, share in load.items()}
)


def test_what_one_phase_cannot_use_goes_to_the_others():
    # Link: two phases want 0.5 each of 0.5, so 1/2 each. HBM: the first then holds 0.2, which leaves 0.8 for
    # two that want 0.6 each, so 2/3 each. Nobody contends for compute.
    rates = fair_rates(
        [{"link": 0.5, "hbm": 0.4}, {"link": 0.5}, {"hbm": 0.6}, {"hbm": 0.6}, {"compute": 1.0}], CAPACITIES
    )
    assert rates == pytest.approx([1 / 2, 1 / 2, 2 / 3, 2 / 3, 1.0], rel=1e-15)


@given(st.lists(loads, max_size=8))
@law
def test_rates_never_exceed_a_capacity(phases):
    rates = fair_rates(phases, CAPACITIES)
    assert all(0.0 < rate <= 1.0 for rate in rates)
    for name, capacity in CAPACITIES.items():
        used = math.fsum(rate * load.get(name, 0.0) for rate, load in zip(rates, phases, strict=True))
        assert used <= capacity * (1 + 1e-11)


@given(st.lists(loads, max_size=8))
@law
def test_rates_are_max_min_fair(phases):
    """A phase below full speed uses a full resource on which nobody is faster."""
    rates = fair_rates(phases, CAPACITIES)
    for rate, load in zip(rates, phases, strict=True):
        if rate == 1.0:
            continue
        bottlenecks = [
            name
            for name, capacity in CAPACITIES.items()
            if load.get(name, 0.0) > 0.0
            and math.fsum(r * other.get(name, 0.0) for r, other in zip(rates, phases, strict=True))
            >= capacity * (1 - 1e-9)
            and all(
                r <= rate * (1 + 1e-9)
                for r, other in zip(rates, phases, strict=True)
                if other.get(name, 0.0) > 0.0
            )
        ]
        assert bottlenecks


@given(st.lists(loads, max_size=7).flatmap(lambda x: st.tuples(st.just(x), st.permutations(range(len(x))))))
@law
def test_rates_do_not_depend_on_the_order_of_phases(case):
    phases, order = case
    rates = fair_rates(phases, CAPACITIES)
    assert fair_rates([phases[i] for i in order], CAPACITIES) == [rates[i] for i in order]


def test_rates_do_not_depend_on_the_order_of_awkward_sums():
    awkward = [{"hbm": x, "link": x / 3} for x in (0.1, 0.2, 0.3, 0.7, 1 / 3, 1e-9)]
    assert len({fair_rates(order, CAPACITIES)[0] for order in itertools.permutations(awkward)}) == 1
