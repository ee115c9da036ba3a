"""What choosing the kept part of a prompt's KV takes, once, at the end of its prefill.

SnapKV (Li et al., NeurIPS 2024): the queries of the prompt's last tokens, its observation window, are scored against
all of its keys; votes are summed and pooled per KV head, the best entries picked, and their keys and values moved
together:

``t = kernels t0 + (keys read + scores + votes + entries moved) / (eb B) + score FLOP / (ec C)``

once a layer that attends, for all prompts that end in a step. The prompt's own attention stays what it is.
"""

from __future__ import annotations

from dataclasses import dataclass

from .attentiontimes import AttentionKind
from .timing.elementwise import ElementwiseParams, elementwise_time
from .timing.form import Chip, KernelTime, Value, smaller

SCORE_PASSES = 8.0
"""A score of the window: 16 bit out of the product, in and out of the softmax, in to be summed [B]."""
VOTE_PASSES = 16.0
"""A vote of an entry, in 32 bit: its sum out, pooling in and out, the choice in [B]."""
KERNELS = 8
"""Scores, softmax, sum, pooling, choice, keys moved, values moved, block table; a launch each, in every layer."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The choice in all layers of a rank.

    Attributes
    ----------
    chip, params : datasheet symbols, and what streaming kernels reach
    kernels : launches of a step in which prompts end
    bytes_per_key, bytes_per_kept : moved for an entry of a prompt, and for one that is kept [B]
    seconds_per_key : matrix work for an entry of a prompt [s]
    """

    chip: Chip
    params: ElementwiseParams
    kernels: float
    bytes_per_key: float
    bytes_per_kept: float
    seconds_per_key: float

    def time(self, keys: Value, kept: Value) -> KernelTime:
        """Return the time of choosing ``kept`` of ``keys`` entries, of all prompts that end in a step [s].

        Approximation: matrix work comes beside the bytes, not under them; a twentieth of the time on an H100.
        """
        work = keys * self.seconds_per_key
        moved = keys * self.bytes_per_key + kept * self.bytes_per_kept
        streamed = elementwise_time(self.chip, self.params, moved, self.kernels * smaller(keys, 1.0))
        return streamed + KernelTime(compute=work, compute_demand=work)


def selection_of(
    chip: Chip, params: ElementwiseParams, kinds: tuple[AttentionKind, ...], window: int
) -> Selection:
    """Bind the choice to a model's layers that keep KV of their own.

    Parameters
    ----------
    chip, params : datasheet symbols, and what streaming kernels reach
    kinds : attention of the layers of a rank
    window : last tokens of a prompt whose queries vote [tokens]
    """
    own = [kind for kind in kinds if kind.shape.kv_bytes_per_token]
    return Selection(
        chip=chip,
        params=params,
        kernels=float(KERNELS * sum(kind.count for kind in own)),
        bytes_per_key=sum(
            kind.count
            * (
                kind.shape.key_bytes_per_key
                + SCORE_PASSES * window * kind.shape.n_heads
                + VOTE_PASSES * kind.shape.n_kv_heads
            )
            for kind in own
        ),
        bytes_per_kept=sum(kind.count * 2.0 * kind.shape.kv_bytes_per_token for kind in own),
        seconds_per_key=sum(
            kind.count
            * kind.shape.score_flop_per_pair
            * window
            / (kind.prefill.params.ec * chip.peak(kind.shape.dtype))
            for kind in own
        ),
    )
