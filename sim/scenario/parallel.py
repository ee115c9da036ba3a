"""What a scenario may ask of the GPUs of a replica and the links between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..fields import AUTO, ScenarioError

if TYPE_CHECKING:
    from ...hwmodels.device import DeviceProfile
    from ...hwmodels.model import ModelSpec
    from ...hwmodels.timing.hop import Network
    from .schema import Scenario

USUAL_GPUS = 8
"""GPUs of a machine where the scenario does not say."""


def check_experts(scenario: Scenario, model: ModelSpec) -> None:
    """Refuse to deal out the experts of a model that has none, as vLLM does."""
    from ...hwmodels.spec import MoEFFN

    if not scenario.parallelism.expert_parallel:
        return
    if not any(isinstance(group.ffn, MoEFFN) and group.ffn.n_experts for group in model.layers):
        raise ScenarioError(
            f"parallelism.expert_parallel: true, but {model.id} has no experts; allowed: false"
        )


def with_link(scenario: Scenario, device: DeviceProfile) -> DeviceProfile:
    """Return the device with the link between the GPUs of a machine that the scenario names."""
    from ...hwmodels.pcie import over_pcie

    link = scenario.node.link
    if link == AUTO or _plain(device.link_type).startswith(_plain(link) or "-"):
        return device
    if _plain(link) == "pcie":
        return over_pcie(device)
    raise ScenarioError(
        f"node.link: {link!r} is not known; allowed: auto, {device.link_type} (the link of {device.id}), pcie; for "
        f"another speed set device to {{base: {device.id}, link_bandwidth: 50GB/s}}"
    )


def check_parallelism(scenario: Scenario, model: ModelSpec, policy_name: str) -> None:
    """Refuse what a replica over several GPUs cannot do, in the order in which its GPUs are numbered."""
    from ...hwmodels.lowering import has_experts

    parallel, machine = scenario.parallelism, machine_gpus(scenario)
    if parallel.tensor_parallel_size > machine:
        _check_machines(scenario, model, machine)
    if parallel.sp_min_token_num != AUTO and not parallel.enable_sp:
        raise ScenarioError(
            f"parallelism.sp_min_token_num: {parallel.sp_min_token_num} without enable_sp; allowed: auto, or enable_sp "
            "true"
        )
    if parallel.pipeline_parallel_size > 1:
        _check_pipeline(scenario, policy_name)
    if parallel.data_parallel_size > 1 and has_experts(model):
        _check_copies(scenario, machine)


def _check_machines(scenario: Scenario, model: ModelSpec, machine: int) -> None:
    """Refuse a tensor-parallel group over several machines that it does not fill, or beside what is not built."""
    from ...hwmodels.lowering import has_experts

    parallel = scenario.parallelism
    what = f"parallelism.tensor_parallel_size: {parallel.tensor_parallel_size} GPUs do not fit a machine of node.gpus"
    if parallel.tensor_parallel_size % machine:
        near = parallel.tensor_parallel_size // machine * machine
        raise ScenarioError(
            f"{what} {machine}, nor fill several; allowed: up to {machine}, or {near}, {near + machine}"
        )
    if parallel.pipeline_parallel_size > 1:
        raise ScenarioError(
            f"{what} {machine}; a group over several machines is not built yet with pipeline_parallel_size above 1"
        )
    if parallel.expert_parallel or (parallel.data_parallel_size > 1 and has_experts(model)):
        raise ScenarioError(
            f"{what} {machine}; a group over several machines is not built yet with experts dealt out over it"
        )


def machines_of(scenario: Scenario) -> tuple[int, Network | None]:
    """Return how many GPUs of a group one machine has, and what connects machines; (0, None): one has all."""
    machine = machine_gpus(scenario)
    if scenario.parallelism.tensor_parallel_size <= machine:
        return 0, None
    return machine, _between(scenario)


def scattered_from(scenario: Scenario, device: DeviceProfile, model: ModelSpec) -> int | None:
    """Return the tokens of a step from which ``enable_sp`` scatters, None: never [tokens]."""
    from ...hwmodels.collectives import sp_min_token_num

    parallel = scenario.parallelism
    if parallel.sp_min_token_num != AUTO:
        return parallel.sp_min_token_num
    return sp_min_token_num(device.arch, model.hidden, parallel.tensor_parallel_size)


def _between(scenario: Scenario) -> Network:
    from ...hwmodels.links import network

    return network("infiniband" if scenario.node.inter_node_link == AUTO else scenario.node.inter_node_link)


def _check_copies(scenario: Scenario, machine: int) -> None:
    parallel = scenario.parallelism
    ranks = parallel.tensor_parallel_size * parallel.data_parallel_size
    if ranks > machine:
        raise ScenarioError(
            f"parallelism.data_parallel_size: {ranks} GPUs that share experts do not fit a machine of node.gpus "
            f"{machine}; an exchange over several machines is not built yet (GPUs on one NVLink switch: node.gpus=72)"
        )
    if parallel.pipeline_parallel_size > 1:
        raise ScenarioError(
            "parallelism.pipeline_parallel_size: stages of a model whose data-parallel copies share experts are not "
            "built yet; allowed: 1"
        )


def _check_pipeline(scenario: Scenario, policy_name: str) -> None:
    from ..policies import find_policy

    where = "with parallelism.pipeline_parallel_size above 1"
    if scenario.scheduler.async_scheduling is True:
        raise ScenarioError(
            f"scheduler.async_scheduling: true {where}, where vLLM has none; allowed: auto, false"
        )
    if scenario.speculative is not None:
        raise ScenarioError(f"speculative: is not built yet {where}; allowed: null")
    if scenario.kv_cache.tiers:
        raise ScenarioError(f"kv_cache.tiers: are not built yet {where}; allowed: []")
    if scenario.scheduler.preemption_mode == "swap":
        raise ScenarioError(f"scheduler.preemption_mode: 'swap' is not built yet {where}; allowed: recompute")
    if find_policy("scheduler", policy_name, "scheduler.name").holds_batch:
        raise ScenarioError(
            f"scheduler.name: {policy_name!r} keeps one batch, which leaves all stages but one idle; allowed {where}: "
            "vllm_v1, sarathi, orca, ..."
        )


def machine_gpus(scenario: Scenario) -> int:
    """Return the GPUs of one machine: as given, else 8, or as many as a tensor-parallel group has."""
    gpus = scenario.node.gpus
    return max(USUAL_GPUS, scenario.parallelism.tensor_parallel_size) if gpus == AUTO else gpus


def networks_of(scenario: Scenario) -> tuple[Network | None, ...]:
    """Return what each pipeline stage but the last has between itself and the next: None where both are in one machine.

    GPUs are numbered stage by stage, machine by machine.
    """
    parallel, machine = scenario.parallelism, machine_gpus(scenario)
    ranks = parallel.tensor_parallel_size
    between = _between(scenario)
    at = [(stage + 1) * ranks - 1 for stage in range(parallel.pipeline_parallel_size)]
    return tuple(between if last // machine != (last + 1) // machine else None for last in at[:-1])


def unvalidated_parallelism(scenario: Scenario, device: DeviceProfile, model: ModelSpec) -> list[str]:
    """Say of pipelines and of data-parallel copies that nothing here was measured against them."""
    from ...hwmodels.lowering import has_experts

    notes = [*_overlap(scenario, model), *_sequence(scenario, device, model)]
    machine, between = machines_of(scenario)
    if between is not None:
        notes.append(
            f"parallelism.tensor_parallel_size: a group over machines of {machine} GPUs is an unvalidated lever: sums "
            "go round the machines by the network's datasheet, inside each as they were measured"
        )
    if scenario.parallelism.data_parallel_size > 1 and has_experts(model):
        notes.append(
            "parallelism.data_parallel_size is an unvalidated lever: no such run was measured; in the experts every "
            "copy is taken to bring as many tokens as the one that is timed, so that copies never wait for each other, "
            "and gathering and dealing back take an all-reduce"
        )
    if scenario.parallelism.pipeline_parallel_size == 1:
        return notes
    return [
        *notes,
        "parallelism.pipeline_parallel_size is an unvalidated lever: no pipelined run was measured; sends between "
        "stages are timed as sums over two GPUs, or by the network's datasheet",
    ]


def _overlap(scenario: Scenario, model: ModelSpec) -> list[str]:
    """Say of communication beside compute what it does not do, or that nobody measured it."""
    from ...hwmodels.lowering import has_experts

    parallel = scenario.parallelism
    if parallel.communication_overlap == "none":
        return []
    if parallel.tensor_parallel_size == 1 and not (parallel.data_parallel_size > 1 and has_experts(model)):
        return [
            "parallelism.communication_overlap: GPUs that sum nothing have nothing to overlap; it changes nothing"
        ]
    return [
        "parallelism.communication_overlap is an unvalidated lever: no such step was measured; attention stays outside "
        "of it, and the kernels that communicate hold their compute units and HBM"
    ]


def _sequence(scenario: Scenario, device: DeviceProfile, model: ModelSpec) -> list[str]:
    """Say of sequence parallelism where it does nothing, or that nobody measured it."""
    parallel = scenario.parallelism
    if not parallel.enable_sp:
        return []
    if parallel.tensor_parallel_size == 1:
        return ["parallelism.enable_sp: one GPU scatters nothing; it changes nothing"]
    since = scattered_from(scenario, device, model)
    if since is None:
        return [
            f"parallelism.enable_sp: vLLM knows no sp_min_token_num for {model.id} (hidden size {model.hidden:,}) on "
            f"{device.arch} and leaves it off; give one"
        ]
    return [
        f"parallelism.enable_sp is an unvalidated lever: no such step was measured; from {since:,} tokens on sums are "
        "two kernels of half an all-reduce each, activations in memory stay as they were"
    ]


def _plain(link: str) -> str:
    return "".join(filter(str.isalnum, link.lower()))
