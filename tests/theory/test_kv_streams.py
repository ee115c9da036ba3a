"""A decode step beside a stream of KV that leaves or enters the device, against arithmetic phase by phase.

A stream at the rate r takes the share r / B of HBM. A phase that reads HBM at the share u of its own time keeps its
speed while u + r / B <= 1; above that both fall to 1 / (u + r / B), so that a phase that reads all along (u = 1) loses
exactly the share of HBM that the stream then has, (r / B) / (1 + r / B).
"""

import math

import pytest
import simpy
from membound.hwmodels.device import load_device
from membound.hwmodels.engine import load_engine
from membound.hwmodels.lowering import Parallelism
from membound.hwmodels.model import load_model
from membound.hwmodels.stepmodel import StepModel
from membound.hwmodels.steptypes import Phase
from membound.hwmodels.tier import host_link
from membound.sim.device.resources import SharedDevice

STEP = (64, 64 * 1500, 1500, [], 64)
ROUTES = {
    # device, what the stream goes over: GB/s in one direction, and the resource it holds
    ("h100_sxm", "NVLink"): (450e9, "link"),
    ("gh200_144gb", "NVLink"): (450e9, "link"),
    ("gh200_144gb", "C2C"): (450e9, "d2h"),
    ("h100_sxm", "PCIe"): (63e9, "d2h"),
}


def steps(device, ranks=1, fidelity="step"):
    return StepModel(
        load_device(device),
        load_engine("vllm-0.24"),
        load_model("llama-3.1-8b"),
        Parallelism(ranks),
        fidelity=fidelity,
    )


def stream(device, route, used):
    """A stream of ten seconds at a share of its link, and its share of HBM."""
    rate, resource = ROUTES[device, route]
    share = used * rate / load_device(device).hbm_bandwidth
    return Phase("kv stream", 10.0, {"hbm": 10.0 * share, resource: 10.0 * used}), share


def beside(model, kv):
    env = simpy.Environment()
    device = SharedDevice(env)
    device.submit([kv])
    return env.run(device.submit(model.phases(*STEP), model.step_ns(*STEP)).done)


def by_hand(model, kv):
    """Each phase's time beside the stream, from the shares that both ask for [s]."""
    found = []
    for phase in model.phases(*STEP):
        asked = [
            (phase.demands.get(name, 0.0) / phase.seconds if phase.seconds else 0.0) + wanted / kv.seconds
            for name, wanted in kv.demands.items()
            if phase.demands.get(name)
        ]
        found.append(phase.seconds * max([1.0, *asked]))
    return found


@pytest.mark.parametrize("used", [0.25, 0.5, 1.0])
@pytest.mark.parametrize(("device", "route"), ROUTES)
@pytest.mark.parametrize("fidelity", ["step", "kernel"])
def test_decode_beside_a_kv_stream_takes_what_the_arithmetic_says(device, route, used, fidelity):
    model = steps(device, fidelity=fidelity)
    kv, _ = stream(device, route, used)
    work, expected = beside(model, kv), by_hand(model, kv)
    assert work.end_ns * 1e-9 == pytest.approx(math.fsum(expected), abs=len(expected) * 1e-9)
    starts = [0, *work.phase_ends_ns[:-1]]
    for start, end, seconds in zip(starts, work.phase_ends_ns, expected, strict=True):
        assert (end - start) * 1e-9 == pytest.approx(seconds, abs=2e-9)
    assert work.end_ns >= model.step_ns(*STEP)


@pytest.mark.parametrize("used", [0.25, 0.5, 1.0])
@pytest.mark.parametrize(("device", "route"), ROUTES)
def test_a_phase_that_only_reads_loses_the_share_of_hbm_that_the_stream_has(device, route, used):
    kv, share = stream(device, route, used)
    env = simpy.Environment()
    shared = SharedDevice(env)
    copy = shared.submit([kv])
    reading = shared.submit([Phase("reading", 1.0, {"hbm": 1.0})])
    rates = shared.rates()
    assert 1.0 - rates[reading] == pytest.approx(rates[copy] * share, rel=1e-12)
    assert 1.0 - rates[reading] == pytest.approx(share / (1.0 + share), rel=1e-12)


@pytest.mark.parametrize("used", [0.25, 0.5, 1.0])
def test_where_hbm_has_room_nobody_is_slowed(used):
    """An H100's decode attention leaves a fifth of HBM, NVLink at its full rate takes 13 %: no slow-down."""
    model = steps("h100_sxm")
    kv, share = stream("h100_sxm", "NVLink", used)
    assert share <= 450 / 3350 + 1e-12
    work, alone = beside(model, kv), model.phases(*STEP)
    spans = {
        phase.name: (end - start, round(phase.seconds * 1e9), phase.demands.get("hbm", 0.0) / phase.seconds)
        for start, end, phase in zip([0, *work.phase_ends_ns[:-1]], work.phase_ends_ns, alone, strict=True)
    }
    for name in ("attention", "elementwise", "host"):
        took, own, reads = spans[name]
        assert reads + share < 1.0
        assert took == pytest.approx(own, abs=1)
    took, own, reads = spans["gemm"]
    assert (took > own + 1) == (reads + share > 1.0)


def test_a_transfer_over_the_link_of_a_tensor_parallel_group_slows_its_all_reduces():
    model = steps("h100_sxm", ranks=4)
    kv, _ = stream("h100_sxm", "NVLink", 0.5)
    work = beside(model, kv)
    (position,) = (i for i, phase in enumerate(model.phases(*STEP)) if phase.name == "communication")
    alone = model.phases(*STEP)[position].seconds
    took = (work.phase_ends_ns[position] - work.phase_ends_ns[position - 1]) * 1e-9
    assert took == pytest.approx(1.5 * alone, abs=2e-9)
    assert work.waited_ns["link"] == pytest.approx(0.5 * alone * 1e9, abs=2)


def test_the_way_to_the_host_is_chip_to_chip_where_both_are_one_module():
    assert host_link(load_device("gh200_144gb")) == ROUTES["gh200_144gb", "C2C"][0]
    assert host_link(load_device("h100_sxm")) == ROUTES["h100_sxm", "PCIe"][0]
