"""Works with compute units of their own, and what a work says that it waited for."""

import math

import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st
from membound.hwmodels.steptypes import Phase
from membound.sim.device.resources import SharedDevice

law = settings(deadline=None, max_examples=settings().max_examples // 2)
lengths = st.integers(1, 4000).map(lambda ns: ns * 1e-9)


@st.composite
def phases(draw, share):
    """Phases on a share of the units: time there is the larger of compute at the share and memory."""
    found = []
    for _ in range(draw(st.integers(1, 4))):
        compute, memory = draw(lengths), draw(lengths)
        seconds = max(compute, memory)
        found.append(
            Phase("phase", seconds, {"hbm": memory, "compute": compute}, max(compute / share, memory))
        )
    return found


splits = st.floats(0.05, 0.95).flatmap(
    lambda share: st.tuples(
        st.just((share, 1.0 - share)),
        st.lists(phases(share), min_size=1, max_size=3),
        st.lists(phases(1.0 - share), min_size=1, max_size=3),
    )
)


def run(*streams):
    """Run streams of works side by side, the works of one after each other; return the works and the last end [ns]."""
    env = simpy.Environment()
    device = SharedDevice(env)
    done = []

    def stream(works):
        for work in works:
            done.append((yield device.submit(work).done))

    for works in streams:
        env.process(stream(works))
    env.run()
    return done, int(env.now)


def serial_ns(*streams):
    return sum(round(sum(p.seconds for p in work) * 1e9) for works in streams for work in works)


@given(splits)
@law
def test_split_units_are_never_slower_than_one_stream_after_the_other(case):
    _, prefill, decode = case
    count = sum(len(work) for work in prefill + decode)
    assert run(prefill, decode)[1] <= serial_ns(prefill, decode) + 2 * count


@given(splits)
@law
def test_split_units_are_never_faster_than_the_busiest_resource_allows(case):
    _, prefill, decode = case
    end = run(prefill, decode)[1]
    everything = [phase for work in prefill + decode for phase in work]
    for resource in ("hbm", "compute"):
        assert end >= math.fsum(phase.demands[resource] for phase in everything) * 1e9 - 2 * len(everything)
    for works in (prefill, decode):
        assert end >= serial_ns(works) - 2 * len(everything)


@given(splits)
@law
def test_what_a_work_waited_for_is_what_it_took_longer(case):
    _, prefill, decode = case
    for work in run(prefill, decode)[0]:
        longer = work.end_ns - work.start_ns - work.plan.bounds[-1]
        assert sum(work.waited_ns.values()) == pytest.approx(longer, abs=1 + len(work.plan.bounds))


def test_a_compute_bound_and_a_memory_bound_stream_each_lose_only_what_they_need_of_the_other():
    # Prefill computes all along on 60 % of the units; decode reads all along and needs 40 % of them at most.
    prefill = Phase("prefill", 6e-6, {"hbm": 0.6e-6, "compute": 6e-6}, 10e-6)
    decode = Phase("decode", 4e-6, {"hbm": 4e-6, "compute": 1e-6}, 4e-6)
    # HBM: prefill asks 0.6/10 of it, decode all: both fall to 1/1.06 until decode ends at 4.24 us, in which prefill has
    # done 0.6/1.06 of that time. Alone it then has all units again.
    works, end = run([[prefill]], [[decode]])
    ended = {work.plan.bounds[-1]: work for work in works}
    assert ended[4000].end_ns == 4240
    assert end == ended[6000].end_ns == 4240 + 6000 - 4240 * 6 // 10 * 100 // 106
    assert ended[4000].waited_ns == pytest.approx({"hbm": 240.0})
    assert ended[6000].waited_ns == pytest.approx({"compute": 0.4 * 4240, "hbm": 0.6 * (1 - 1 / 1.06) * 4240})


def test_a_stream_alone_has_all_units():
    phase = Phase("prefill", 6e-6, {"compute": 6e-6}, 10e-6)
    copy = Phase("copy", 3e-6, {"hbm": 1e-6, "link": 3e-6})
    assert run([[phase]])[1] == 6000
    assert max(work.end_ns for work in run([[phase]], [[copy]])[0]) == 6000


def test_who_shares_units_and_is_slowed_by_hbm_says_hbm():
    works, _ = run([[Phase("a", 1e-6, {"hbm": 1e-6})]], [[Phase("b", 1e-6, {"hbm": 0.5e-6, "link": 1e-6})]])
    first, second = sorted(works, key=lambda work: work.end_ns)
    assert first.waited_ns == pytest.approx({"hbm": 500.0}, rel=1e-3)
    assert second.waited_ns == pytest.approx({"hbm": 500.0}, rel=1e-3)
