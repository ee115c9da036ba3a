"""Communication beside compute: a step as two half batches, one sums over the GPUs while the other computes.

Both are phases on one device. While they run together each advances at the same share of its own speed, as far as
HBM and compute units allow (max-min fair progress, as on any shared device): the kernel that sends holds compute units
and moves its message through HBM, so that overlap is not free. What is left of the longer one then runs alone:

``t = (C + A)/n + (1 - 1/n) sum of [min(c, a) / r + |c - a|]``, ``r = min(1, 1/(demand of c + demand of a))``

over the parts of the step (c: matrices, streaming kernels, experts; a: their share of the all-reduces A), with one n-th
of it where the first half has nothing beside it yet. Weights are read once for each half. Where that is slower than one
batch in turn, the batch is not cut.

Source: vLLM's dual batch overlap (``enable_dbo``, for exchanges of experts); DeepSeek-AI, V3, 2024, section 3.4.

Approximation: attention stays outside. It could hide more of a message, and its second launch in every layer is not
charged.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from .timing.form import KERNEL_TIME_FIELDS, Array, KernelTime, either

COMMUNICATION = "communication"
SHARED = ("hbm_demand", "compute_demand")
"""What the two halves take from each other; the link has one of them alone."""


def beside(work: KernelTime, message: KernelTime, alone: float = 0.0) -> KernelTime:
    """Return the time of ``work`` and ``message`` running beside each other, of arrays of one shape [s].

    What the message adds to the work's own time is ``communication``; the demands of both stay.

    Parameters
    ----------
    work, message : what computes and what sends
    alone : share of both that has nothing beside it [-]
    """
    of_work, of_message = np.asarray(work.seconds), np.asarray(message.seconds)
    tight = np.ones(np.broadcast_shapes(of_work.shape, of_message.shape))
    for name in SHARED:
        held = [
            np.asarray(getattr(time, name)) / np.maximum(seconds, 1e-300)
            for time, seconds in ((work, of_work), (message, of_message))
        ]
        tight = np.maximum(tight, held[0] + held[1])
    shorter, longer = np.minimum(of_work, of_message), np.maximum(of_work, of_message)
    together = shorter * tight + (longer - shorter)
    seconds = alone * (of_work + of_message) + (1.0 - alone) * together
    both = {name: getattr(work, name) + getattr(message, name) for name in (*SHARED, "link_demand")}
    causes = {name: getattr(work, name) for name in KERNEL_TIME_FIELDS if name not in both}
    return KernelTime(**causes | {COMMUNICATION: work.communication + seconds - of_work}, **both)


def dual_batch(
    whole: Mapping[str, KernelTime], halves: tuple[Mapping[str, KernelTime], ...], m: Array, sums: int
) -> dict[str, KernelTime]:
    """Return the parts of a step as two half batches beside each other, or in turn where that is quicker.

    Parameters
    ----------
    whole : parts of the uncut batch, ``communication`` among them
    halves : of each half; an entry is there for each of ``m``
    m : tokens of the batch [tokens]
    sums : times that a half sends in a step
    """
    cut = {name: halves[0][name] + halves[1][name] for name in whole}
    message = cut[COMMUNICATION]
    computing = {name: time for name, time in cut.items() if name != COMMUNICATION}
    total = sum(np.asarray(time.seconds) for time in computing.values())
    found = {
        name: beside(time, message.times(np.asarray(time.seconds) / total), 1.0 / (2.0 * sums))
        for name, time in computing.items()
    }
    found[COMMUNICATION] = message.times(0.0)
    spent, in_turn = (sum(np.asarray(time.seconds) for time in parts.values()) for parts in (found, whole))
    cuts = (m >= 2.0) & (spent < in_turn)
    return {name: either(cuts, found[name], time) for name, time in whole.items()}
