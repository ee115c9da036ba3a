"""Stages of a pipeline: together the whole model, each with its own ends, joined by what they send."""

from __future__ import annotations

import numpy as np
import pytest
from membound.hwmodels.account import StepColumns, account
from membound.hwmodels.device import load_device
from membound.hwmodels.errors import CapacityError, CatalogError
from membound.hwmodels.links import network
from membound.hwmodels.lowering import Parallelism, UnsupportedError, lower_model
from membound.hwmodels.pcie import over_pcie
from membound.hwmodels.pipeline import PipelineStepModel, lower_stages
from membound.hwmodels.pipelineaccount import account_stages
from membound.hwmodels.precision import Quantization
from membound.hwmodels.stepmodel import StepModel
from membound.hwmodels.timing.allreduce import AllReduceParams, allreduce_seconds
from membound.hwmodels.timing.hop import Network, hop_time

from .physics import ALL, EXPERTS, HYBRID, QWEN3_14B, SMALL, WINDOWS, Device, Engine

DECODE = (16, 16_000, 1000, (), 16)
PREFILL = (0, 0, 0, [(4096, 0)], 1)


def pipeline(model=QWEN3_14B, pp: int = 4, tp: int = 1, **more) -> PipelineStepModel:
    return PipelineStepModel(Device(), Engine(), model, Parallelism(tp, pp), Quantization(), **more)


@pytest.mark.parametrize("name", [name for name, spec in ALL.items() if spec.n_layers >= 2])
@pytest.mark.parametrize("tp", [1, 2])
def test_the_stages_together_do_what_the_whole_model_does(name: str, tp: int) -> None:
    model = ALL[name]
    whole = lower_model(model, Parallelism(tp), Quantization())
    stages = lower_stages(model, Parallelism(tp, 2), Quantization())
    for what in ("kv_bytes_per_token", "state_bytes", "dense_weight_bytes"):
        assert sum(getattr(stage, what) for stage in stages) == pytest.approx(getattr(whole, what))
    for dtype, flop in whole.flop_per_token.items():
        assert sum(stage.flop_per_token.get(dtype, 0.0) for stage in stages) == pytest.approx(flop)
    assert sum(sum(layer.count for layer in stage.layers) for stage in stages) == model.n_layers


def test_the_first_stage_embeds_and_the_last_one_norms_and_samples() -> None:
    first, middle, last = lower_stages(QWEN3_14B, Parallelism(1, 3), Quantization())
    assert first.embedding_bytes_per_token > 0 == middle.embedding_bytes_per_token
    assert last.head.n > 0 == first.head.n == middle.head.n
    assert (len(first.ends), len(middle.ends), len(last.ends)) == (1, 0, 1)
    # Hidden states and residual, in 16 bit.
    assert first.sent_bytes_per_token == middle.sent_bytes_per_token == 2 * 2 * QWEN3_14B.hidden
    assert last.sent_bytes_per_token == 0


def test_stages_differ_where_layers_do_not_divide() -> None:
    """What is left over goes to the stages before the last, which has the head: 40 layers over 3."""
    stages = pipeline(pp=3).stages_ns(*PREFILL)
    layers = [sum(layer.count for layer in stage.plan.layers) for stage in pipeline(pp=3).stages]
    assert layers == [13, 14, 13]
    assert stages[1] == max(stages)


@pytest.mark.parametrize("model", [QWEN3_14B, WINDOWS, HYBRID, EXPERTS], ids=lambda spec: spec.id)
@pytest.mark.parametrize("counts", [DECODE, PREFILL], ids=["decode", "prefill"])
def test_a_passage_takes_the_whole_model_s_time_and_what_the_stages_add(model, counts) -> None:
    """Each further stage adds its own host and one way over the link, and nothing else."""
    tokens = counts[0] + sum(new for new, _ in counts[3])
    whole = StepModel(Device(), Engine(), model, Parallelism(), Quantization())
    found = pipeline(model, pp=2)
    params = AllReduceParams.from_lane(Device().lane("allreduce"))
    m = float(whole.padded(np.array([tokens]))[0])
    sent = float(np.asarray(hop_time(found.stages[0].chip, params, 4 * model.hidden * m, 1).seconds))
    added = found.step_ns(*counts) - whole.step_ns(*counts)
    host = Engine().host_exposed_s + Engine().host_per_seq_s * (counts[0] + len(counts[3]))
    assert added == pytest.approx((sent + host) * 1e9, rel=0.02, abs=2000)


def test_a_stage_behind_a_network_waits_for_it() -> None:
    near = pipeline(pp=2).stages_ns(*PREFILL)
    far = pipeline(pp=2, networks=(Network(1e9, 1e-3),)).stages_ns(*PREFILL)
    assert far[1] == near[1]
    assert far[0] - near[0] == pytest.approx(4096 * 4 * QWEN3_14B.hidden / 1e9 * 1e9 + 1e6, rel=0.02)


def test_a_hop_moves_one_share_and_gathers_the_whole() -> None:
    chip = pipeline(pp=2).stages[0].chip
    params = AllReduceParams.from_lane(Device().lane("allreduce"))
    one, four = (float(np.asarray(hop_time(chip, params, 1e8, group).seconds)) for group in (1, 4))
    assert one == pytest.approx(float(allreduce_seconds(chip, params, 1e8, 2)))
    assert four == pytest.approx(
        float(allreduce_seconds(chip, params, 0.25e8, 2))
        + 0.5 * float(allreduce_seconds(chip, params, 1e8, 4))
    )


def test_the_account_is_that_of_an_average_stage() -> None:
    whole = StepModel(Device(), Engine(), QWEN3_14B, Parallelism(), Quantization())
    stages = pipeline(pp=4)
    one = np.ones(2, dtype=np.int64)
    columns = StepColumns(
        steps=one,
        n_decode=16 * one,
        context_sum=16_000 * one,
        longest=1000 * one,
        sampled=np.array([16, 17]),
        prefill_starts=np.array([0, 0, 1]),
        prefill_new=np.array([512]),
        prefill_cached=np.array([0]),
        duration_ns=np.array([1, 1]),
    )
    alone, mean = account(whole, columns), account_stages(stages, columns)
    assert 4 * mean.weight_bytes == pytest.approx(alone.weight_bytes)
    assert 4 * mean.kv_bytes == pytest.approx(alone.kv_bytes)
    for dtype, flop in alone.flop.items():
        assert 4 * mean.flop[dtype] == pytest.approx(flop)
    took = [
        sum(stages.stages_ns(16, 16_000, 1000, prefill, rows))
        for prefill, rows in (((), 16), ([(512, 0)], 17))
    ]
    assert 4 * mean.causes_ns.sum(axis=1) == pytest.approx(took, rel=1e-4)


def test_what_cannot_be_dealt_out_is_refused() -> None:
    with pytest.raises(CapacityError, match="pipeline_parallel_size is 99; allowed: 1 to 40"):
        pipeline(pp=99)
    with pytest.raises(UnsupportedError, match="pipeline_parallel_size is 2"):
        StepModel(Device(), Engine(), SMALL, Parallelism(1, 2), Quantization())


def test_networks_go_by_name_or_by_bandwidth() -> None:
    assert network("InfiniBand") == network("50GB/s")
    assert network("ethernet").latency > network("roce").latency
    for wrong in ("pigeon", "0GB/s", "-1GB/s"):
        with pytest.raises(CatalogError, match=r"node\.inter_node_link"):
            network(wrong)


def test_over_pcie_all_reduces_take_what_they_took_over_pcie() -> None:
    h100, l40s = load_device("h100_sxm"), load_device("l40s")
    slow = over_pcie(h100)
    assert (slow.link_type, slow.link_bandwidth) == ("PCIe", h100.pcie_bandwidth)
    assert slow.lane("gemm").level == "measured"
    assert slow.lane("allreduce").level == "prior"
    chip = StepModel(slow, Engine(), SMALL, Parallelism(), Quantization()).chip
    times = {
        device.id + device.link_type: float(
            allreduce_seconds(chip, AllReduceParams.from_lane(device.lane("allreduce")), 1 << 26, 4)
        )
        for device in (h100, slow, l40s)
    }
    ratio = l40s.link_bandwidth / slow.link_bandwidth
    assert times["h100_sxmPCIe"] == pytest.approx(times["l40sPCIe"] * ratio, rel=0.01)
    assert times["h100_sxmPCIe"] > 20 * times["h100_sxmNVLink4"]
    assert over_pcie(l40s) is l40s
