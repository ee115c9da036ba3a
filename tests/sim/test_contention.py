"""What a step waited for others on its device is charged to the resource that was short, to the nanosecond."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from membound.sim.books import contention
from membound.sim.books.attribution import CHARGED
from membound.sim.books.steprow import StepRow

amounts = st.lists(st.integers(0, 10**7), min_size=len(CHARGED), max_size=len(CHARGED))
waits = st.dictionaries(st.sampled_from(sorted(contention.CAUSES_OF)), st.floats(0, 1e7), max_size=3)


def row(waited):
    return StepRow(1, 1, 1, 0, 1, [], None, 0, 0, 0, 0, 1, waited=waited)


@given(st.lists(st.tuples(amounts, waits), min_size=1, max_size=6))
@settings(deadline=None)
def test_nothing_is_lost_and_nobody_pays_for_another_resource(cases):
    rows, steps = [row(waited) for _, waited in cases], np.ones(len(cases), dtype=np.int64)
    spent = [np.array(column) for column in zip(*(own for own, _ in cases), strict=True)]
    durations = sum(spent) + np.array([10**8] * len(cases))
    waited = contention.waited_ns(rows, steps, durations)
    charged = contention.charge(spent, waited)
    more = {name: after - before for name, before, after in zip(CHARGED, spent, charged, strict=True)}
    assert all((extra >= 0).all() for extra in more.values())
    for number, (_, given_ns) in enumerate(cases):
        for resource, causes in contention.CAUSES_OF.items():
            mates = [r for r, names in contention.CAUSES_OF.items() if names == causes]
            asked = sum(given_ns.get(mate, 0.0) for mate in mates)
            assert sum(more[cause][number] for cause in causes) == pytest.approx(asked, abs=len(mates)), (
                resource
            )


def test_waits_grow_the_causes_of_a_resource_in_proportion():
    spent = {"hbm_weights": 300, "hbm_kv": 600, "hbm_activations": 100, "compute": 50}
    columns = [np.array([spent.get(name, 0)]) for name in CHARGED]
    waited = contention.waited_ns([row({"hbm": 500.2, "compute": 7.0})], np.array([1]), np.array([1557]))
    charged = dict(zip(CHARGED, contention.charge(columns, waited), strict=True))
    found = {name: int(charged[name][0]) for name in spent}
    assert found == {"hbm_weights": 450, "hbm_kv": 900, "hbm_activations": 150, "compute": 57}


def test_nobody_waits_longer_than_the_step_took():
    waited = contention.waited_ns([row({"hbm": 900.0, "compute": 400.0})], np.array([1]), np.array([1000]))
    assert {name: column.tolist() for name, column in waited.items()} == {"hbm": [900], "compute": [100]}


def test_who_waited_for_nothing_costs_nothing():
    assert contention.waited_ns([row({})], np.array([1]), np.array([10])) == {}
