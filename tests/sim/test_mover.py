"""KV transfers beside the steps of an engine: the same sharing as on a shared device, and who waits for what."""

from __future__ import annotations

from typing import Any

import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st
from membound.hwmodels.device import load_device
from membound.hwmodels.steptypes import Phase
from membound.hwmodels.tier import TierProfile, load_tier, store_seconds, transfer_phase
from membound.sim.device.resources import SharedDevice
from membound.sim.tiers.mover import Mover
from membound.sim.tiers.route import Route

MIB = 1 << 20


class FastHost:
    """A device whose link to the host takes a third of its memory bandwidth."""

    id, link_type, link_bandwidth = "any", "NVLink", 1e9
    hbm_bandwidth, pcie_bandwidth, c2c_bandwidth = 3e12, 1e12, None


def kind(read: float = 1e12, write: float = 1e12, latency: float = 0.0, depth: int = 1 << 20) -> TierProfile:
    values = {"capacity": 1, "read_bandwidth": read, "write_bandwidth": write, "latency": latency}
    sheet = values | {"queue_depth": depth, "host_link_share": 1}
    sourced = {name: {"value": value, "source": "test"} for name, value in sheet.items()}
    return TierProfile.model_validate({"id": "test", "name": "test", "datasheet": sourced})


def route(**changes: Any) -> Route:
    return Route(kind(**changes), FastHost(), 1_000_000, 1)  # a block takes 1 us


def phases(*parts: tuple[float, dict[str, float]]) -> list[Phase]:
    return [
        Phase(f"p{number}", seconds, {name: share * seconds for name, share in loads.items()})
        for number, (seconds, loads) in enumerate(parts)
    ]


LOADS = st.dictionaries(st.sampled_from(("hbm", "compute")), st.floats(0.05, 1), max_size=2)
STEPS = st.lists(
    st.lists(st.tuples(st.integers(1, 20_000), LOADS), min_size=1, max_size=4), min_size=1, max_size=6
)


@settings(deadline=None)
@given(steps=STEPS, blocks=st.integers(1, 60))
def test_transfers_and_steps_share_a_device_as_works_do(steps: list[Any], blocks: int) -> None:
    """Steps in a row beside one write that starts with the second of them: the oracle is `SharedDevice`."""
    mover, way = Mover(8), route()
    parts = [phases(*((ns * 1e-9, loads) for ns, loads in step)) for step in steps]
    alone = [sum(ns for ns, _ in step) for step in steps]
    found, now = [], 0
    for number, (step, duration) in enumerate(zip(parts, alone, strict=True)):
        if number == 0:
            mover.after("write", way, "write", blocks)
        now, moved = mover.step(now, duration, lambda step=step: step)
        assert moved.waited_ns >= 0
        found.append(now)

    env = simpy.Environment()
    device = SharedDevice(env, dict.fromkeys(("hbm", "compute", "link", "host", "h2d", "d2h"), 1.0))
    expected = []

    def serve() -> Any:
        for number, (step, duration) in enumerate(zip(parts, alone, strict=True)):
            yield device.submit(step, duration).done
            expected.append(env.now)
            if number == 0:
                device.submit([way.phase("write", blocks)])

    env.process(serve())
    env.run()
    assert found == pytest.approx(expected, abs=2 * len(steps))


def test_alone_a_step_that_restores_takes_the_longer_of_both_and_a_layer_of_the_other() -> None:
    for step_us, restore_us in ((100, 30), (30, 100), (50, 50)):
        mover = Mover(10)
        mover.before("read", route(), "read", restore_us)
        end, moved = mover.step(0, step_us * 1000, lambda us=step_us: phases((us * 1e-6, {"compute": 1.0})))
        assert end == 1000 * (max(step_us, restore_us) + min(step_us, restore_us) // 10)
        assert moved == (end - step_us * 1000, restore_us * 1_000_000, 0)


def test_without_overlap_a_step_starts_when_all_is_there() -> None:
    mover = Mover(10, layerwise=False)
    mover.before("read", route(), "read", 40)
    end, _ = mover.step(0, 100_000, lambda: phases((100e-6, {"hbm": 1.0})))
    assert end == 140_000


def test_a_write_slows_decoding_by_the_share_of_hbm_it_takes_and_ends_later_for_it() -> None:
    """Loads of 1 and a third: both go on at three quarters, so 12 us of writing are there after 16 us."""
    mover = Mover(10)
    mover.after("write", route(), "write", 12)
    now, _ = mover.step(0, 1000, lambda: phases((1e-6, {"hbm": 1.0})))
    assert now == 1000
    now, moved = mover.step(now, 9000, lambda: phases((9e-6, {"hbm": 1.0})))
    assert (now, moved.waited_ns) == (13_000, 3000)
    assert not mover.idle_at(now)
    now, moved = mover.step(now, 9000, lambda: phases((9e-6, {"hbm": 1.0})))
    assert moved.waited_ns == 1000  # 4 us at three quarters, then alone
    assert mover.idle_at(now)


def test_phases_are_asked_for_only_where_something_moves() -> None:
    mover = Mover(4)
    end, moved = mover.step(5, 7, lambda: pytest.fail("nothing moves"))
    assert (end, tuple(moved)) == (12, (0, 0, 0))


def test_a_write_that_slows_nothing_ends_when_it_would_alone() -> None:
    """Loads of a half and a third: 12 us of writing are over 3 us into the second step, in phases or in one go."""
    for peaks in (None, lambda: {"hbm": 0.5}):
        mover = Mover(10)
        mover.after("write", route(), "write", 12)
        now, _ = mover.step(0, 1000, lambda: phases((1e-6, {"hbm": 0.5})), peaks)
        now, moved = mover.step(now, 9000, lambda: phases((9e-6, {"hbm": 0.5})), peaks)
        assert (now, moved.waited_ns) == (10_000, 0)
        assert not mover.idle_at(now + 2990)
        assert mover.idle_at(now + 3010)


def test_a_run_begins_beside_transfers_only_if_they_end_in_its_first_step_and_slow_nothing() -> None:
    for duration, load, clear in ((15_000, 0.5, True), (9000, 0.5, False), (15_000, 0.8, False)):
        mover = Mover(10)
        mover.after("write", route(), "write", 12)
        now, _ = mover.step(0, 1000, lambda: phases((1e-6, {})))
        assert mover.clears(now, duration, lambda load=load: {"hbm": load}) is clear
        assert mover.idle_at(now) is clear


def test_what_one_step_orders_on_a_channel_is_one_transfer_with_one_latency() -> None:
    mover, way = Mover(1, layerwise=False), route(latency=1e-6)
    for _ in range(3):
        mover.before("read", way, "read", 2)
    assert mover.step(0, 10, lambda: phases((1e-8, {})))[0] == 7010


@pytest.mark.parametrize(("name", "slower"), [("dram", "link"), ("nvme", "tier"), ("remote", "tier")])
def test_a_restore_takes_bytes_over_bandwidth(name: str, slower: str) -> None:
    """1 GiB to an H100, from the datasheets alone, within 2 %."""
    tier, device = load_tier(name), load_device("h100_sxm")
    phase = transfer_phase(tier, device, "read", 1024, MIB, 1)
    link = 1024 * MIB / (0.88 * 63e9)
    store = 1024 * MIB / tier.bandwidth("read")
    assert (link > store) == (slower == "link")
    assert phase.seconds == pytest.approx(max(link, store), rel=0.02)
    assert phase.demands["hbm"] == pytest.approx(1024 * MIB / 3.35e12)
    assert phase.demands["h2d"] == pytest.approx(link)


def test_ranks_have_a_link_each_and_share_the_tier() -> None:
    device = load_device("h100_sxm")
    one, four = (
        {name: transfer_phase(load_tier(name), device, "write", 512, MIB, ranks).seconds for name in ("dram", "nvme")}
        for ranks in (1, 4)
    )  # fmt: skip
    assert four["dram"] == pytest.approx(one["dram"])
    assert four["nvme"] == pytest.approx(4 * one["nvme"], rel=0.02)


def test_few_operations_at_a_time_and_a_long_latency_bound_small_blocks() -> None:
    slow = kind(latency=1e-3, depth=4)
    assert store_seconds(slow, "read", 4, 1000) == pytest.approx(1e-3, rel=1e-4)
    assert store_seconds(slow, "read", 40, 1000) == pytest.approx(10e-3)
