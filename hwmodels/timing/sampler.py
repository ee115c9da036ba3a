"""Time of choosing tokens: passes over rows of logits, and rows that one unit each works through.

A greedy sampler, or one that sorts (torch's radix sort), streams every row x vocabulary entry through memory a number
of times, as far as a pass does not find what the one before left in the last-level cache. A kernel that searches the
threshold without sorting keeps a row in one compute unit, which goes through it again and again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from .elementwise import ElementwiseParams, streams_time
from .form import Array, Chip, KernelTime

PASS_BYTES: Final = {"greedy": 5.0, "top_p_top_k": 24.0}
"""What one kernel moves for each row and vocabulary entry [B]: a logit read, widened, compared; a key with its index
read and written."""


@dataclass(frozen=True, slots=True)
class SamplerParams:
    """What one way of sampling takes.

    Attributes
    ----------
    t0 : fixed time of all its kernels [s]
    bytes_per_entry : traffic for each row and vocabulary entry [B]
    pass_bytes : traffic of one kernel among them [B]
    serial : time of one row in one compute unit, for each vocabulary entry [s]; 0 without such a kernel
    """

    t0: float
    bytes_per_entry: float
    pass_bytes: float
    serial: float = 0.0


def sampler_time(
    chip: Chip, streaming: ElementwiseParams, params: SamplerParams, rows: Array, vocab: int
) -> KernelTime:
    """Return the time to choose one token of ``vocab`` for each of ``rows`` (1-d) [s].

    Parameters
    ----------
    streaming : the device's streaming kernels: their share of HBM, and what they find in its cache
    """
    passes = (params.bytes_per_entry / params.pass_bytes, params.pass_bytes * vocab)
    waves = np.ceil(rows / chip.units)
    held = rows / (np.maximum(waves, 1.0) * chip.units)
    row_s = params.serial * vocab
    searched = KernelTime(latency=params.t0 + waves * row_s, compute_demand=waves * row_s * held)
    return streams_time(chip, streaming, [passes], rows, 0.0) + searched
