"""What a scenario may ask of the GPUs of a replica and the links between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..fields import AUTO, ScenarioError

if TYPE_CHECKING:
    from ...hwmodels.device import DeviceProfile
    from ...hwmodels.model import ModelSpec
    from .schema import Scenario


def check_experts(scenario: Scenario, model: ModelSpec) -> None:
    """Refuse to deal out the experts of a model that has none, as vLLM does."""
    from ...hwmodels.spec import MoEFFN

    if not scenario.parallelism.expert_parallel:
        return
    if not any(isinstance(group.ffn, MoEFFN) and group.ffn.n_experts for group in model.layers):
        raise ScenarioError(
            f"parallelism.expert_parallel: true, but {model.id} has no experts; allowed: false"
        )


def check_node(scenario: Scenario, device: DeviceProfile) -> None:
    """Refuse a group that leaves its machine, and a link that is not the device's."""
    node, ranks = scenario.node, scenario.parallelism.tensor_parallel_size
    if node.gpus != AUTO and ranks > node.gpus:
        raise ScenarioError(
            f"parallelism.tensor_parallel_size: {ranks} GPUs do not fit a machine of node.gpus {node.gpus}; a group "
            "over several machines is not built yet"
        )
    if node.link != AUTO and not _plain(device.link_type).startswith(_plain(node.link) or "-"):
        raise ScenarioError(
            f"node.link: {node.link!r} is not built yet; allowed: auto, {device.link_type} (the link of {device.id}; "
            "for another speed set device to {base: "
            f"{device.id}, link_bandwidth: 50GB/s}})"
        )


def _plain(link: str) -> str:
    return "".join(filter(str.isalnum, link.lower()))
