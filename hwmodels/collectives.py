"""How the GPUs of a group sum: in turn or beside compute, whole or scattered, in one machine or several.

**Sequence parallel.** An all-reduce is a reduce-scatter and an all-gather; between the two every GPU norms its own
share of the tokens. What travels is the same, norms take 1/N of their bytes, and each sum is two kernels.

**Several machines.** A group of M machines with g GPUs each scatters inside, sums Z/g bytes of every GPU around a ring
of machines, and gathers inside: ``local(Z, g) + 2 (M - 1) latency + 2 (M - 1)/M (Z/g) / network``.

Source: Korthikanti et al., Reducing Activation Recomputation, MLSys 2023; vLLM ``SequenceParallelismPass``; NCCL's
hierarchical rings.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .timing.allreduce import AllReduceParams, allreduce_time
from .timing.form import Array, Chip, KernelTime, either
from .timing.hop import Network

_MIB = 1 << 20
_FROM_MIB_PER_GPU = {"Hopper": 8, "Blackwell": 32, "Blackwell Ultra": 32}
_FROM_HIDDEN = 8192
_FLOOR_BYTES = 1.0


@dataclass(frozen=True, slots=True)
class Collectives:
    """How a group sums.

    Attributes
    ----------
    halved : a batch may be cut in two, one half sending while the other computes (see ``overlap``)
    scattered_from : tokens of a step from which sums are scattered and gathered; 0: never [tokens]
    machine : GPUs of a group that one machine has; 0: all of them
    network : what connects the machines
    """

    halved: bool = False
    scattered_from: int = 0
    machine: int = 0
    network: Network | None = None

    def time(self, chip: Chip, params: AllReduceParams, message: Array, group: int, m: Array) -> KernelTime:
        """Return the time of one sum of ``message`` bytes in steps of ``m`` tokens [s].

        Approximation: a reduce-scatter and an all-gather take half an all-reduce each, and the second of them the fixed
        time of an empty one.
        """
        whole = self.whole(chip, params, message, group)
        if not self.scattered_from:
            return whole
        second = self.whole(chip, params, np.full_like(message, _FLOOR_BYTES), group)
        return either(m >= self.scattered_from, whole + second, whole)

    def whole(self, chip: Chip, params: AllReduceParams, message: Array, group: int) -> KernelTime:
        """Return the time of one all-reduce of ``message`` bytes that is never scattered [s]."""
        if self.network is None:
            return allreduce_time(chip, params, message, group)
        machines = group // self.machine
        others = machines - 1
        each = message / self.machine
        seconds = 2.0 * others * (self.network.latency + each / machines / self.network.bandwidth)
        across = KernelTime(communication=seconds, link_demand=seconds)
        return across + allreduce_time(chip, params, message, self.machine)


ALONE = Collectives()
"""Sums in turn, whole, in one machine."""


def sp_min_token_num(arch: str, hidden: int, group: int, element_bytes: int = 2) -> int | None:
    """Return the tokens from which vLLM scatters the sums of a step by itself; None: never [tokens].

    Source: vLLM ``get_sequence_parallelism_threshold``: models of 8,192 and wider, from 8 MiB of hidden states for each
    GPU on Hopper and 32 on Blackwell.

    >>> sp_min_token_num("Hopper", 8192, 8), sp_min_token_num("Hopper", 4096, 8), sp_min_token_num("Ada", 8192, 8)
    (4096, None, None)
    """
    size = _FROM_MIB_PER_GPU.get(arch)
    if size is None or hidden < _FROM_HIDDEN:
        return None
    return size * _MIB * group // (hidden * element_bytes)
