"""Cascade attention: a prefix that all sequences of a batch share is read once, for all of their queries.

``t = prefix (n queries of every head against P shared keys, as a prompt's attention) + suffixes (decode attention over
what each sequence has of its own) + merging of both outputs``

a layer, in place of decode attention over n whole contexts. Three launches instead of one, and a prefix that few thread
blocks walk through in turn: it pays with many sequences and long prefixes.

Source: Ye et al., Cascade Inference (FlashInfer), 2024; vLLM ``v1/attention/backends/flash_attn.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from .attentiontimes import AttentionKind
from .timing.elementwise import ElementwiseParams, elementwise_time
from .timing.form import Array, Chip, KernelTime

FEWEST_TOKENS = 256
FEWEST_SEQUENCES = 8
_TILE = 128
_SUM_BYTES = 4.0
NANO = 1e9


def is_chosen(
    shared: int, sequences: int, n_heads: int, n_kv_heads: int, units: float, *, decodes: bool
) -> bool:
    """Tell whether vLLM takes cascade attention for a step, where ``disable_cascade_attn`` lets it.

    Never below 256 shared tokens or 8 sequences; where chunks are in the step or each head has keys of its own, always;
    else if its waves of thread blocks over the prefix are fewer than those of decode attention
    (``use_cascade_attention``).

    Parameters
    ----------
    shared : leading tokens that all have in the same blocks [tokens]
    sequences : in the step
    n_heads, n_kv_heads : of a rank
    units : compute units of the device
    decodes : all sequences compute one token

    >>> [is_chosen(4096, n, 32, 8, 132, decodes=True) for n in (7, 16, 17, 64)]
    [False, False, True, True]
    """
    if shared < FEWEST_TOKENS or sequences < FEWEST_SEQUENCES:
        return False
    group = n_heads // n_kv_heads
    if group <= 1 or not decodes:
        return True
    tiles = -(-shared // _TILE)
    cascade = -(-n_heads * -(-sequences // _TILE) // int(units)) * tiles
    blocks = sequences * n_kv_heads * -(-group // _TILE) * tiles
    return cascade < -(-blocks // int(units))


@dataclass(slots=True)
class SharedPrefix:
    """The part of a batch's attention that reads a shared prefix, in all layers of a rank.

    Attributes
    ----------
    chip, params : datasheet symbols, and what streaming kernels reach
    kind : attention of the layers, which all see every key
    """

    chip: Chip
    params: ElementwiseParams
    kind: AttentionKind
    _known: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])

    def chosen(self, shared: int, sequences: int, *, decodes: bool) -> bool:
        """Tell whether vLLM takes cascade attention; see `is_chosen`."""
        shape = self.kind.shape
        return is_chosen(shared, sequences, shape.n_heads, shape.n_kv_heads, self.chip.units, decodes=decodes)

    def time(self, sequences: Array, shared: Array) -> KernelTime:
        """Return the time of prefixes of ``shared`` keys (1-d) for one query each of so many sequences [s].

        Approximation: as a chunk of prompt whose rows all see the prefix and nothing of each other; its last tile ends
        with the prefix.
        """
        shape = self.kind.shape
        before = np.maximum(shared - 0.5 * (sequences + _TILE), 0.0)
        prefix = self.kind.prefill.time_many(sequences, before, np.arange(len(sequences)))
        # Two outputs in 16 bit and the sums of their exponentials in, one output out.
        row = shape.n_heads * (3 * 2.0 * shape.v_head_dim + 2 * _SUM_BYTES)
        return (prefix + elementwise_time(self.chip, self.params, row * sequences)).times(
            float(self.kind.count)
        )

    def ns(self, sequences: int, shared: int) -> int:
        """Return ``time`` of one step, in whole nanoseconds [ns]."""
        found = self._known.get((sequences, shared))
        if found is None:
            spent = self.time(np.array([float(sequences)]), np.array([float(shared)]))
            found = self._known[sequences, shared] = int(float(np.sum(spent.seconds)) * NANO + 0.5)
        return found
