"""Attention of a model's layers, one kind (shape and window) at a time: decode runs, mixed steps, both by cause."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .lowering import AttentionShape, ModelPlan
from .steptypes import StepDevice, StepEngine
from .timing.decode_attention import DecodeParams, DecodeShape, DecodeTerms, decode_shape, decode_terms
from .timing.form import Array, Chip
from .timing.prefill_attention import PrefillForm, PrefillParams, prefill_form, prefill_shape


@dataclass(slots=True)
class AttentionKind:
    """``count`` layers whose attention has the same shape and the same window.

    Attributes
    ----------
    count : layers
    shape : the layer on one rank
    decode_params, decode_shape : lane and shape of decode attention
    prefill : prefill attention, ready to be asked
    split : whether decode splits the KV of a sequence over thread blocks
    """

    chip: Chip
    count: int
    shape: AttentionShape
    decode_params: DecodeParams
    decode_shape: DecodeShape
    prefill: PrefillForm
    split: bool = True
    _terms: dict[tuple[int, int], DecodeTerms] = field(default_factory=dict[tuple[int, int], DecodeTerms])

    def terms(self, batch: int, key_blocks: int) -> DecodeTerms:
        """Return the decode terms for a batch whose longest sequence spans ``key_blocks`` blocks of keys."""
        key = (batch, key_blocks)
        found = self._terms.get(key)
        if found is None:
            found = self._terms[key] = decode_terms(
                self.chip,
                self.decode_params,
                self.decode_shape,
                batch,
                key_blocks * self.decode_params.key_block,
                split=self.split,
            )
        return found

    def visible(self, context: int) -> int:
        """Return the keys that a query at the end of ``context`` tokens sees."""
        window = self.shape.window
        if not window:
            return context
        return (context - 1) % window + 1 if self.shape.chunked else min(context, window)

    def visible_run(self, decode: Sequence[int], steps: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return, for ``steps`` steps of growing contexts, the sum and the maximum of what the queries see.

        Parameters
        ----------
        decode : contexts at the first step [tokens]
        steps : number of steps

        Returns
        -------
        sums, longest : int64 arrays of shape (steps,) [tokens]
        """
        ramp = np.arange(steps, dtype=np.int64)
        window = self.shape.window
        if not window:
            return sum(decode) + len(decode) * ramp, max(decode) + ramp
        contexts = np.asarray(decode, dtype=np.int64)
        if self.shape.chunked:
            seen = (contexts[:, None] - 1 + ramp) % window + 1
            return seen.sum(axis=0), seen.max(axis=0)
        # A sequence adds a key a step until it fills the window: count how many still grow.
        room = np.maximum(window - contexts, 0)
        growing = len(decode) - np.cumsum(np.bincount(np.minimum(room, steps), minlength=steps))[:steps]
        sums = np.empty(steps, dtype=np.int64)
        sums[0] = int(np.minimum(contexts, window).sum())
        sums[1:] = sums[0] + np.cumsum(growing[: steps - 1])
        return sums, np.minimum(max(decode) + ramp, window)


def attention_kinds(device: StepDevice, engine: StepEngine, chip: Chip, plan: ModelPlan) -> tuple[AttentionKind, ...]:
    """Bind a model's attention layers to a device's lanes, equal layers together."""
    counts: dict[AttentionShape, int] = {}
    for layer in plan.layers:
        if layer.attention is not None:
            counts[layer.attention] = counts.get(layer.attention, 0) + layer.count
    return tuple(_kind(device, engine, chip, shape, count) for shape, count in counts.items())


def _kind(device: StepDevice, engine: StepEngine, chip: Chip, shape: AttentionShape, count: int) -> AttentionKind:
    gemm = device.lane("gemm", engine.lane)
    params = DecodeParams.from_lane(device.lane("decode_attention", engine.lane))
    prefill = PrefillParams.from_lane(device.lane("prefill_attention", engine.lane), gemm)
    return AttentionKind(
        chip=chip,
        count=count,
        shape=shape,
        decode_params=params,
        decode_shape=decode_shape(
            params, shape.n_heads, shape.n_kv_heads, shape.head_dim, shape.kv_width, shape.v_head_dim, shape.dtype
        ),
        prefill=prefill_form(
            chip,
            prefill,
            prefill_shape(
                shape.n_heads,
                shape.n_kv_heads,
                shape.head_dim,
                shape.kv_width,
                shape.v_head_dim,
                0 if shape.chunked else shape.window,
                shape.dtype,
            ),
        ),
    )
