"""Time to hand activations on to the next stage of a pipeline, or KV to another replica."""

from __future__ import annotations

from dataclasses import dataclass

from .allreduce import AllReduceParams, allreduce_seconds
from .form import Chip, KernelTime, Value


@dataclass(frozen=True, slots=True)
class Network:
    """What connects machines, seen from one device.

    Attributes
    ----------
    bandwidth : of a device, one direction [B/s]
    latency : of one message [s]
    """

    bandwidth: float
    latency: float


def hop_time(
    chip: Chip, params: AllReduceParams, message: Value, group: int, network: Network | None = None
) -> KernelTime:
    """Return the time to hand ``message`` bytes to the next stage, communication throughout [s].

    Every rank sends its share to one rank of the next stage, where the group gathers the whole (vLLM's
    ``send_tensor_dict`` with ``all_gather_group``).

    Approximation: inside a machine a send takes what a sum over two devices of as many bytes takes, which moves as
    many each way; a gather half of a sum over its group. Neither was measured.

    Parameters
    ----------
    chip, params : datasheet symbols and all-reduce lane
    message : activations, all ranks together [B]
    group : tensor-parallel ranks of a stage
    network : what the next stage is behind; None: the link inside the machine
    """
    share = message / group
    seconds = (
        allreduce_seconds(chip, params, share, 2)
        if network is None
        else network.latency + share / network.bandwidth
    )
    if group > 1:
        seconds = seconds + 0.5 * allreduce_seconds(chip, params, message, group)
    return KernelTime(communication=seconds, link_demand=seconds)


def handover_seconds(
    chip: Chip, params: AllReduceParams, sent: Value, ranks: tuple[int, int], network: Network | None = None
) -> Value:
    """Return the time to hand KV on to another replica, all ranks at once [s].

    The side with fewer ranks sets the pace: each of its ranks sends or takes an equal share.

    Approximation: inside a machine a send takes what a sum over two devices of as many bytes takes, which moves as
    many each way; on a network the datasheet's rate is reached. Neither was measured.

    Parameters
    ----------
    chip, params : datasheet symbols and all-reduce lane of the sender
    sent : what all receiving ranks get together [B]
    ranks : tensor-parallel ranks that send, and that receive
    network : what is between them; None: the link inside the machine
    """
    share = sent / min(ranks)
    if network is None:
        return allreduce_seconds(chip, params, share, 2)
    return network.latency + share / network.bandwidth
