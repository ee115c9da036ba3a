"""Laws of the shared device: alone nothing changes, together nothing is lost, nobody is favoured."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import simpy
from hypothesis import example, given, settings
from hypothesis import strategies as st
from membound.hwmodels.steptypes import Phase
from membound.sim.device.resources import SharedDevice
from membound.sim.device.sharing import ResourceError

RESOURCES = ("hbm", "compute", "link")
CAPACITIES = {"hbm": 1.0, "compute": 1.0, "link": 0.5}
law = settings(deadline=None, max_examples=settings().max_examples // 2)


def stretch(seconds, demands=None):
    """Return a phase; its name is of no importance."""
    return Phase("phase", seconds, demands or {})


def full(ns, *resources):
    """Return a phase that takes all there is of some resources for some ns."""
    return stretch(ns * 1e-9, dict.fromkeys(resources, ns * 1e-9))


shares = st.one_of(st.sampled_from([0.0, 0.25, 0.5, 1.0]), st.floats(0.0, 1.0))
lengths = st.one_of(st.integers(0, 4000).map(lambda ns: ns * 1e-9), st.floats(0.0, 4e-6))


@st.composite
def phase(draw):
    seconds = draw(lengths)
    names = draw(st.sets(st.sampled_from(RESOURCES)))
    return stretch(seconds, {name: draw(shares) * CAPACITIES[name] * seconds for name in sorted(names)})


works = st.lists(phase(), max_size=5)
arrivals = st.lists(st.tuples(st.integers(0, 9000), works), min_size=1, max_size=6)


def own_ns(phases):
    """Return the boundaries of the phases alone [ns]."""
    return [round(end * 1e9) for end in itertools.accumulate(phase.seconds for phase in phases)]


def simulate(jobs, *, after_event=lambda device: None, submit=None):
    """Run jobs (start, phases) on a device; return the works in the order of ``jobs``."""
    env = simpy.Environment()
    device = SharedDevice(env, CAPACITIES)
    submitted = {}
    by_start = sorted(enumerate(jobs), key=lambda job: job[1][0])

    def source():
        for i, (start, phases) in by_start:
            if start > env.now:
                yield env.timeout(start - env.now)
            submitted[i] = submit(device, i, phases) if submit else device.submit(phases)
            after_event(device)

    env.process(source())
    while env.peek() < math.inf:
        env.step()
        after_event(device)
    assert type(env.now) is int
    return [submitted[i] for i in range(len(jobs))]


def ends(submitted):
    return [(work.start_ns, work.end_ns, work.phase_ends_ns, work.completed) for work in submitted]


# ---- alone


@given(works, st.integers(0, 10**15))
@law
def test_alone_a_work_ends_at_its_start_plus_the_rounded_sum_of_its_phases(phases, start):
    (work,) = simulate([(start, phases)])
    bounds = own_ns(phases)
    assert work.completed
    assert work.phase_ends_ns == [start + bound for bound in bounds]
    assert work.end_ns == start + (bounds[-1] if bounds else 0)
    assert abs((work.end_ns - start) * 1e-9 - math.fsum(phase.seconds for phase in phases)) <= 1e-9


@given(st.lists(st.floats(1e-7, 10.0), min_size=1, max_size=40))
@law
def test_alone_a_long_work_is_exact_to_the_nanosecond(seconds):
    phases = [stretch(s, {"hbm": s, "link": 0.5 * s}) for s in seconds]
    (work,) = simulate([(7, phases)])
    assert work.phase_ends_ns == [7 + bound for bound in own_ns(phases)]


@given(works, works, st.integers(-1, 1))
@law
def test_the_callers_own_rounding_of_the_duration_is_kept(phases, other, shift):
    total = (own_ns(phases) or [0])[-1]
    duration = max(0, total + shift) if phases else 0
    device = SharedDevice(simpy.Environment(), CAPACITIES)
    work = device.submit(phases, duration)
    device.env.run(work.done)
    assert work.end_ns == duration
    assert sorted(work.phase_ends_ns) == work.phase_ends_ns


def test_a_work_alone_costs_two_events_however_many_phases_it_has():
    for count in (1, 100):
        env = simpy.Environment()
        SharedDevice(env).submit([full(10, "hbm")] * count)
        steps = 0
        while env.peek() < math.inf:
            env.step()
            steps += 1
        assert (steps, env.now) == (2, 10 * count)


def test_a_wake_up_that_was_overtaken_is_ignored():
    env = simpy.Environment()
    device = SharedDevice(env)
    for _ in range(3):
        device.submit([full(1000, "hbm")])
        device.rates()
    steps = 0
    while env.peek() < math.inf:
        env.step()
        steps += 1
    # Ends were expected at 1000, then 2000, then 3000; only the last comes true, and three works are done.
    assert (steps, env.now) == (3 + 3, 3000)


def test_works_one_after_the_other_never_slow_each_other():
    env = simpy.Environment()
    device = SharedDevice(env)
    log = []

    def engine():
        for _ in range(3):
            work = yield device.submit([full(100, "hbm"), full(50, "compute")]).done
            log.append((work.start_ns, work.phase_ends_ns, device.busy))

    env.process(engine())
    env.run()
    assert log == [(0, [100, 150], False), (150, [250, 300], False), (300, [400, 450], False)]


# ---- together: worked by hand


def test_two_equal_works_on_a_full_resource_take_twice_as_long():
    together = simulate([(5, [full(1000, "hbm")]), (5, [full(1000, "hbm")])])
    assert [work.end_ns for work in together] == [2005, 2005]


@given(st.integers(2, 60), st.integers(1, 5000))
@example(49, 7)  # where 49 x (1/49) is below 1 in floats
@law
def test_n_equal_works_on_a_full_resource_take_n_times_as_long(n, ns):
    assert {work.end_ns for work in simulate([(0, [full(ns, "hbm")])] * n)} == {n * ns}


@given(arrivals)
@law
def test_works_whose_demands_fit_side_by_side_do_not_slow_each_other(jobs):
    thin = [
        (start, [stretch(p.seconds, {k: v / len(jobs) for k, v in p.demands.items()}) for p in phases])
        for start, phases in jobs
    ]
    for (start, phases), work in zip(thin, simulate(thin), strict=True):
        assert work.phase_ends_ns == [start + bound for bound in own_ns(phases)]


def test_phases_on_different_resources_do_not_slow_each_other():
    submitted = simulate([(0, [full(1000, "hbm")]), (0, [full(700, "compute")])])
    assert [work.end_ns for work in submitted] == [1000, 700]


def test_a_newcomer_meets_the_phase_that_the_elapsed_time_says():
    # The step reads HBM until 1000, computes until 2000. The copy comes at 500 and wants all of HBM for 1000:
    # both halve until the step has read the rest at 1500, then the copy has 500 left and nobody beside it.
    step = [full(1000, "hbm"), full(1000, "compute")]
    first, copy = simulate([(0, step), (500, [full(1000, "hbm")])])
    assert first.phase_ends_ns == [1500, 2500]
    assert copy.end_ns == 2000
    # Arriving at 1500 it finds the step computing, and neither notices the other.
    first, copy = simulate([(0, step), (1500, [full(1000, "hbm")])])
    assert first.phase_ends_ns == [1000, 2000]
    assert copy.end_ns == 2500


def test_a_step_lumped_into_one_phase_would_be_too_optimistic():
    # Half the step is pure reading, half pure computing; lumped, it seems to ask only half of each and to fit
    # beside a copy that wants half of HBM. By phases the reading (1 + 0.5 wanted) is slowed to 2/3.
    copy = [stretch(1e-5, {"hbm": 0.5e-5})]
    lumped = [stretch(2e-6, {"hbm": 1e-6, "compute": 1e-6})]
    by_phases = [full(1000, "hbm"), full(1000, "compute")]
    assert simulate([(0, lumped), (0, copy)])[0].end_ns == 2000
    assert simulate([(0, by_phases), (0, copy)])[0].end_ns == 2500


# ---- together: laws


@given(arrivals)
@law
def test_no_capacity_is_exceeded_at_any_instant_and_progress_adds_up_to_the_work(jobs):
    progress = {}
    state = {"now": 0, "rates": {}}

    def integrate(device):
        now = device.env.now
        for work, rate in state["rates"].items():
            progress[work] = progress.get(work, 0.0) + rate * (now - state["now"])
        state["now"], state["rates"] = now, device.rates()
        for name, capacity in CAPACITIES.items():
            held = math.fsum(rate * work.load.get(name, 0.0) for work, rate in state["rates"].items())
            assert held <= capacity * (1 + 1e-11)
        assert sum(state["rates"].values()) >= min(1.0, len(state["rates"])) - 1e-12

    for (_, phases), work in zip(jobs, simulate(jobs, after_event=integrate), strict=True):
        total = (own_ns(phases) or [0])[-1]
        # An end falls on the first whole nanosecond in which the work is complete, so up to one may be idle.
        assert total - 1e-5 <= progress.get(work, 0.0) < total + 1.0


@given(arrivals)
@law
def test_what_was_used_of_each_resource_is_what_the_works_demanded(jobs):
    last = {"used": dict.fromkeys(RESOURCES, 0.0), "device": None}
    n_phases = sum(len(phases) for _, phases in jobs)

    def watch(device):
        used = device.used()
        for name in RESOURCES:
            assert used[name] >= last["used"][name] - 1e-15
            # Each boundary is rounded to the nanosecond, which shifts up to that much of a phase's demand.
            assert used[name] <= CAPACITIES[name] * 1e-9 * (device.env.now + n_phases) + 1e-15
        last.update(used=used, device=device)

    simulate(jobs, after_event=watch)
    for name in RESOURCES:
        demanded = math.fsum(phase.demands.get(name, 0.0) for _, phases in jobs for phase in phases)
        assert last["device"].used()[name] == pytest.approx(demanded, rel=1e-12, abs=1e-20)


@given(arrivals)
@law
def test_no_work_is_faster_than_alone_nor_all_slower_than_one_by_one(jobs):
    submitted = simulate(jobs)
    alone = [(own_ns(phases) or [0])[-1] for _, phases in jobs]
    for length, work in zip(alone, submitted, strict=True):
        assert work.completed
        assert length <= work.end_ns - work.start_ns <= sum(alone) + len(jobs)


@given(st.lists(works, min_size=1, max_size=6))
@law
def test_no_set_of_works_is_faster_than_its_busiest_resource(sets):
    makespan = max(work.end_ns for work in simulate([(0, phases) for phases in sets]))
    n_phases = sum(len(phases) for phases in sets)
    for name, capacity in CAPACITIES.items():
        demanded = math.fsum(phase.demands.get(name, 0.0) for phases in sets for phase in phases)
        assert makespan >= demanded / capacity * 1e9 - n_phases


@given(arrivals.flatmap(lambda jobs: st.tuples(st.just(jobs), st.permutations(range(len(jobs))))))
@law
def test_the_order_of_submissions_in_one_instant_changes_nothing(case):
    jobs, order = case
    jobs = [(start - start % 3000, phases) for start, phases in jobs]
    expected = ends(simulate(jobs))
    assert ends(simulate([jobs[i] for i in order])) == [expected[i] for i in order]


@pytest.mark.parametrize("late", [False, True])
def test_an_arrival_at_the_instant_of_an_end_finds_the_device_free_in_whatever_order_they_come(late):
    env = simpy.Environment()
    device = SharedDevice(env)
    done = []

    def arrival(_):
        assert device.n_active == 0
        done.append(device.submit([full(100, "hbm")]))

    if not late:
        env.timeout(100).callbacks.append(arrival)
    device.submit([full(100, "hbm")])
    if late:
        env.timeout(100).callbacks.append(arrival)
    env.run()
    assert (done[0].start_ns, done[0].end_ns) == (100, 200)


@given(arrivals, st.integers(0, 10**12))
@law
def test_a_later_start_of_everything_shifts_every_end_alike(jobs, shift):
    moved = simulate([(start + shift, phases) for start, phases in jobs])
    assert [work.end_ns - shift for work in moved] == [work.end_ns for work in simulate(jobs)]


@given(arrivals, st.lists(st.integers(1, 20000), max_size=8))
@law
def test_looking_changes_nothing(jobs, times):
    def look(device):
        _ = device.n_active, device.busy, device.rates(), device.used()

    env_free = ends(simulate(jobs))
    assert ends(simulate(jobs, after_event=look)) == env_free
    watched = simulate([*jobs, *((at, []) for at in times)], after_event=look)
    assert ends(watched[: len(jobs)]) == env_free


@given(arrivals, st.integers(2, 5))
@law
def test_a_phase_cut_into_equal_pieces_is_the_same_work(jobs, pieces):
    def cut(p):
        return [stretch(p.seconds / pieces, {k: v / pieces for k, v in p.demands.items()})] * pieces

    whole = simulate(jobs)
    in_pieces = simulate([(start, [piece for p in phases for piece in cut(p)]) for start, phases in jobs])
    for one, many in zip(whole, in_pieces, strict=True):
        # Boundaries on whole nanoseconds: a phase may start up to one apart, and so may each that it meets.
        assert abs(one.end_ns - many.end_ns) <= 2 + sum(len(phases) for _, phases in jobs)


@given(
    st.lists(
        st.tuples(st.integers(0, 3000), st.lists(st.integers(0, 2000), max_size=4)), min_size=1, max_size=4
    )
)
@law
def test_ends_agree_with_processor_sharing_in_exact_fractions(jobs):
    """Reference with no shared code: one full resource, so that n active works each advance at 1/n."""
    submitted = simulate([(start, [full(ns, "hbm") for ns in lengths]) for start, lengths in jobs])
    left = {i: Fraction(sum(lengths)) for i, (_, lengths) in enumerate(jobs)}
    now, exact = Fraction(0), {}
    while left:
        present = [i for i in left if jobs[i][0] <= now]
        to_come = [Fraction(jobs[i][0]) for i in left if jobs[i][0] > now]
        ending = [now + min(left[i] for i in present) * len(present)] if present else []
        until = min(to_come + ending)
        for i in present:
            left[i] -= (until - now) / len(present)
            if left[i] == 0:
                exact[i] = until
                del left[i]
        now = until
    for i, work in enumerate(submitted):
        assert -1e-5 <= work.end_ns - exact[i] <= 1.0 + len(jobs)


# ---- phases given as a function


@given(arrivals)
@law
def test_phases_asked_for_late_give_the_same_ends(jobs):
    def late(device, i, phases):
        return device.submit(lambda: phases, (own_ns(phases) or [0])[-1])

    for eager, lazy in zip(simulate(jobs), simulate(jobs, submit=late), strict=True):
        assert (eager.start_ns, eager.end_ns, eager.completed) == (lazy.start_ns, lazy.end_ns, lazy.completed)


def test_phases_given_as_a_function_are_asked_for_only_when_another_work_comes():
    asked = []

    def phases():
        asked.append(env.now)
        return [full(1000, "hbm"), full(1000, "compute")]

    env = simpy.Environment()
    device = SharedDevice(env)
    env.run(device.submit(phases, 2000).done)
    assert asked == []
    second = device.submit(phases, 2000)
    env.run(until=2500)
    copy = device.submit([full(1000, "hbm")])
    env.run()
    assert asked == [2500]
    assert (second.phase_ends_ns, copy.end_ns) == ([3500, 4500], 4000)


# ---- cancelling


@given(arrivals, st.integers(0, 12000), st.integers(0, 5))
@law
def test_a_cancelled_work_frees_its_share_and_leaves_what_it_took(jobs, at, which):
    which %= len(jobs)
    box = {}

    def submit(device, i, phases):
        if i == len(jobs):
            victim = box.get(which)
            box["cancelled"] = victim is not None and victim.cancel()
            box["used"], box["others"] = device.used(), device.n_active
        box[i] = device.submit(phases)
        box["device"] = device
        return box[i]

    submitted = simulate([*jobs, (at, [])], submit=submit)
    victim = submitted[which]
    if box["cancelled"]:
        assert (victim.completed, victim.end_ns, victim.done.value) == (False, at, victim)
    else:
        assert victim.completed
    assert not victim.cancel()
    assert all(work.completed for i, work in enumerate(submitted) if i != which)
    assert box["device"].n_active == 0


def test_after_a_cancellation_the_other_work_runs_at_full_speed():
    env = simpy.Environment()
    device = SharedDevice(env)
    one, other = device.submit([full(1000, "hbm")]), device.submit([full(1000, "hbm")])
    env.run(until=400)
    assert other.cancel()
    assert device.used()["hbm"] == pytest.approx(400e-9)
    env.run(one.done)
    # 200 of 1000 done by 400, the other 800 alone.
    assert (one.end_ns, other.end_ns) == (1200, 400)
    assert device.used()["hbm"] == pytest.approx(1200e-9)


# ---- input


@pytest.mark.parametrize(
    ("phases", "words"),
    [
        ([full(10, "hbm"), stretch(1.0, {"hbm": 1.1})], "phase 'phase' (2 of 2): demand of 1.1 s on 'hbm'"),
        (
            [stretch(1.0, {"hbm": -0.1})],
            "demand of -0.1 s on 'hbm'; allowed: 0 to capacity x seconds = 1.0 s",
        ),
        ([stretch(1.0, {"hbm": math.nan})], "demand of nan s"),
        ([stretch(0.0, {"hbm": 1e-9})], "demand of 1e-09 s"),
        ([stretch(-1.0)], "length of -1.0 s; allowed: finite, not negative"),
        ([stretch(math.nan)], "length of nan s"),
        ([stretch(math.inf)], "length of inf s"),
        ([stretch(1.0, {"hmb": 0.5})], "unknown resource 'hmb' in phase 'phase' (1 of 1); nearest: 'hbm'"),
    ],
)
def test_a_phase_that_cannot_be_run_is_refused_in_one_line_and_leaves_no_trace(phases, words):
    device = SharedDevice(simpy.Environment())
    with pytest.raises(ResourceError) as error:
        device.submit(phases)
    assert words in str(error.value)
    assert "\n" not in str(error.value)
    assert not device.busy
    assert device.env.peek() == math.inf


def test_a_demand_above_all_there_is_by_float_noise_counts_as_all():
    seconds = 0.1 + 0.2
    device = SharedDevice(simpy.Environment(), CAPACITIES)
    work = device.submit(
        [stretch(seconds, {"hbm": math.nextafter(seconds, 1.0), "link": 0.15000000000000003})]
    )
    assert work.load == {"hbm": 1.0, "link": 0.5}
    device.env.run(work.done)
    assert work.end_ns == 300_000_000


def test_a_duration_rounded_down_leaves_no_boundary_behind_it():
    device = SharedDevice(simpy.Environment())
    work = device.submit([full(10, "hbm"), stretch(0.0)], 9)
    device.env.run(work.done)
    assert (work.phase_ends_ns, work.end_ns) == ([9, 9], 9)


def test_a_duration_that_is_not_the_sum_or_is_missing_is_refused():
    device = SharedDevice(simpy.Environment())
    with pytest.raises(ResourceError, match="duration of 12 ns is not the phases' sum of 10 ns"):
        device.submit([full(10, "hbm")], 12)
    with pytest.raises(ResourceError, match="duration_ns is None"):
        device.submit(lambda: [full(10, "hbm")])
    with pytest.raises(ResourceError, match="duration_ns is -1"):
        device.submit(lambda: [full(10, "hbm")], -1)
    with pytest.raises(ResourceError, match="capacity of 'hbm' is 0"):
        SharedDevice(simpy.Environment(), {"hbm": 0})


def test_numbers_from_numpy_leave_the_clock_an_int():
    env = simpy.Environment()
    device = SharedDevice(env)
    device.submit([stretch(np.float64(1e-6), {"hbm": np.float64(1e-6)})], np.int64(1000))
    device.submit([stretch(np.float64(1e-6), {"hbm": np.float64(1e-6)})])
    device.submit(lambda: [stretch(np.float32(1e-6), {"hbm": np.float32(1e-6)})], np.int64(1000))
    env.run()
    assert type(env.now) is int
    assert env.now == 3000
