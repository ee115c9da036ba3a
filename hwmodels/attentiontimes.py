"""Attention of a model's layers, one kind (shape and window) at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from .lanevariants import attention_lane, lane_or_none, nearest_lane
from .lowering import AttentionShape, ModelPlan
from .steptypes import Phase, StepDevice, StepEngine, demanded
from .timing.decode_attention import (
    SCORE_BYTES,
    DecodeParams,
    DecodeShape,
    DecodeTerms,
    decode_shape,
    decode_terms,
    mla_decode_shape,
    one_wave,
    with_scores,
)
from .timing.decodes_beside import BesideParams, Chunks, beside_time
from .timing.form import NO_DEMANDS, Chip, Demands, KernelTime, Value
from .timing.prefill_attention import (
    PrefillForm,
    PrefillParams,
    mla_prefill_shape,
    prefill_form,
    prefill_shape,
)

MOST_BLOCKS = 1 << 20
"""More key blocks than any sequence has: two such numbers are told apart when they are joined to one."""
Whole = TypeVar("Whole", int, NDArray[np.int64])


def span_of(batch: Whole, context_sum: Whole, longest: Whole, key_block: int) -> Whole:
    """Return the key blocks of the longest and of the mean sequence of a batch, joined to one number.

    Decode attention of a batch depends on its contexts through this and their sum alone.
    """
    return -(-longest // key_block) * MOST_BLOCKS + -(-context_sum // (batch * key_block))


def stretches(spans: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Return where stretches of equal numbers begin and end."""
    return pairwise([0, *(np.flatnonzero(np.diff(spans)) + 1).tolist(), len(spans)])


@dataclass(slots=True)
class AttentionKind:
    """``count`` layers whose attention has the same shape and the same window.

    Attributes
    ----------
    count : layers
    shape : the layer on one rank
    decode_params, decode_shape : lane and shape of decode attention
    prefill : prefill attention, ready to be asked
    queries : rows of each decoding sequence: 1, or more where drafted tokens are verified beside it
    beside : what decodes take in one call with chunks of prompt; None where the device has no such lane, and the
        engine's ``mixed_decode_factor`` on their time alone holds
    one_wave : most sequences that run at once: up to it the mean one plays no part
    full : every key is seen
    """

    chip: Chip
    count: int
    shape: AttentionShape
    decode_params: DecodeParams
    decode_shape: DecodeShape
    prefill: PrefillForm
    queries: int = 1
    beside: BesideParams | None = None
    one_wave: float = field(init=False)
    full: bool = field(init=False)
    _terms: dict[tuple[int, int], DecodeTerms] = field(default_factory=dict[tuple[int, int], DecodeTerms])

    def __post_init__(self) -> None:
        self.one_wave = one_wave(self.chip, self.decode_params, self.decode_shape)
        self.full = not self.shape.window and self.shape.kept == 1

    def alike(self, other: AttentionKind) -> bool:
        """Tell whether a layer of either kind takes the same time in every step."""
        return replace(self, count=other.count, _terms=other._terms) == other

    def remember_with(self, other: AttentionKind) -> None:
        """Keep what is worked out for either of two kinds that are ``alike`` for both."""
        self._terms = other._terms

    def terms(self, batch: int, span: int) -> DecodeTerms:
        """Return the decode terms for a batch whose longest and mean sequences have the key blocks of ``span``."""
        key = (batch, span)
        found = self._terms.get(key)
        if found is None:
            block = self.decode_params.key_block
            longest, mean = (blocks * block for blocks in divmod(span, MOST_BLOCKS))
            found = self._terms[key] = decode_terms(
                self.chip, self.decode_params, self.decode_shape, batch, longest, mean
            )
        return found

    def span(self, batch: int, context_sum: int, longest: int) -> int:
        """Return the key blocks of the longest sequence, and of the mean one where it plays a part; see `span_of`."""
        block = self.decode_params.key_block
        blocks = -(-longest // block) * MOST_BLOCKS
        return blocks - (-context_sum // (batch * block)) if batch > self.one_wave else blocks

    def steady_steps(self, batch: int, context_sum: int, longest: int) -> int:
        """Return for how many steps, this one included, ``span`` stays what it is: it never falls [steps]."""
        block = self.decode_params.key_block
        steps = -longest % block + 1
        return min(steps, -context_sum % (batch * block) // batch + 1) if batch > self.one_wave else steps

    def spans(
        self, batch: NDArray[np.int64] | int, sums: NDArray[np.int64], longest: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return ``span`` of many steps, shape (steps,); a step of nobody has none (0)."""
        totals = np.where(np.asarray(batch) > self.one_wave, sums, 0)
        return span_of(np.maximum(batch, 1), totals, longest, self.decode_params.key_block)

    @property
    def one_call_above(self) -> float:
        """Tokens of the longest chunk above which decodes are tiles of one call with the chunks.

        A call of one token a sequence is the decodes' own kernel; infinite where nothing is known of common calls.
        """
        return 1.0 if self.beside else math.inf

    def beside_time(self, chunks: Chunks, decodes: Value, keys: Value, longest: Value) -> KernelTime:
        """Return what decodes add to a call with chunks; parameters as in ``decodes_beside.beside_time`` [s]."""
        assert self.beside is not None
        return beside_time(self.prefill, self.beside, chunks, decodes, keys, longest)

    def visible(
        self, batch: int, context_sum: int, longest: int, contexts: Sequence[int] | None
    ) -> tuple[int, int]:
        """Return the keys that a decode batch sees, all together and by its longest sequence [tokens]."""
        if self.full:
            return context_sum, longest
        window = self.shape.window
        if not window:
            return self.shape.keys_kept(context_sum), self.shape.keys_kept(longest)
        seen = self._seen(batch, context_sum, contexts)
        if self.shape.chunked:
            inside = (seen - 1) % window + 1
            return int(inside.sum()), int(inside.max())
        # Beside its own window a row of several reads what the rows before it see.
        window += self.queries - 1
        return int(np.minimum(seen, window).sum()), min(longest, window)

    def visible_run(
        self, batch: int, context_sum: int, longest: int, steps: int, contexts: Sequence[int] | None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return what ``visible`` is in each of ``steps`` steps in which every context grows by one.

        Returns
        -------
        sums, longest : int64 arrays of shape (steps,) [tokens]
        """
        ramp = np.arange(steps, dtype=np.int64)
        window = self.shape.window
        if not window:
            return self.shape.keys_kept(context_sum + batch * ramp), self.shape.keys_kept(longest + ramp)
        seen = self._seen(batch, context_sum, contexts)
        if self.shape.chunked:
            inside = (seen[:, None] - 1 + ramp) % window + 1
            return inside.sum(axis=0), inside.max(axis=0)
        # A sequence adds a key a step until it fills the window: count how many still grow after each step.
        room = np.minimum(np.maximum(window - seen, 0), steps)
        growing = batch - np.cumsum(np.bincount(room, minlength=steps + 1))[:steps]
        sums = np.empty(steps, dtype=np.int64)
        sums[0] = np.minimum(seen, window).sum()
        sums[1:] = sums[0] + np.cumsum(growing[: steps - 1])
        return sums, np.minimum(longest + ramp, window)

    def _seen(self, batch: int, context_sum: int, contexts: Sequence[int] | None) -> NDArray[np.int64]:
        """Return the contexts as an array.

        Approximation: a caller that does not know them gets equal ones, which overstates what short windows
        see by the spread of the lengths around the window; engines pass them (``needs_contexts``).
        """
        if contexts is not None:
            return np.asarray(contexts, dtype=np.int64)
        return context_sum // batch + (np.arange(batch) < context_sum % batch).astype(np.int64)


def attention_kinds(
    device: StepDevice,
    engine: StepEngine,
    chip: Chip,
    plan: ModelPlan,
    *,
    naive: bool = False,
    queries: int = 1,
) -> tuple[AttentionKind, ...]:
    """Bind a model's attention layers to a device's lanes, equal layers together.

    Parameters
    ----------
    device, engine, chip, plan : whose lanes, which software lane, datasheet symbols, and the lowered model
    naive : the score matrix goes through HBM, with three more launches (mask, softmax, values)
    queries : rows of each decoding sequence; they share its keys and values, read once
    """
    counts: dict[AttentionShape, int] = {}
    for layer in plan.layers:
        if layer.attention is not None:
            counts[layer.attention] = counts.get(layer.attention, 0) + layer.count
    kinds = (
        (_latent if shape.kind == "mla" else _grouped_query)(device, engine, chip, shape, count, queries)
        for shape, count in counts.items()
    )
    return tuple(_naive(kind, engine) if naive else kind for kind in kinds)


def _grouped_query(
    device: StepDevice, engine: StepEngine, chip: Chip, shape: AttentionShape, count: int, queries: int
) -> AttentionKind:
    gemm = device.lane("gemm", engine.lane)
    made_for = attention_lane(
        engine.lane,
        shape.n_heads,
        shape.n_kv_heads,
        shape.head_dim,
        shape.kv_width,
        windowed=shape.window > 0,
    )
    params = DecodeParams.from_lane(nearest_lane(device, "decode_attention", made_for))
    prefill = PrefillParams.from_lane(nearest_lane(device, "prefill_attention", made_for), gemm)
    heads = (shape.n_heads, shape.n_kv_heads, shape.head_dim, shape.kv_width, shape.v_head_dim)
    rows = (shape.n_heads * queries, *heads[1:])
    # Approximation: a chunk of prompt under chunked attention is timed as under a window of the chunk's size.
    at_prefill = prefill_shape(*heads, window=shape.window, dtype=shape.dtype)
    return AttentionKind(
        chip=chip,
        count=count,
        shape=shape,
        decode_params=params,
        decode_shape=decode_shape(params, *rows, dtype=shape.dtype),
        prefill=prefill_form(chip, prefill, at_prefill),
        queries=queries,
        beside=_beside(device, engine),
    )


def _beside(device: StepDevice, engine: StepEngine) -> BesideParams | None:
    """Return what decodes take beside chunks in the engine's own kernel on a device; None where that is not known."""
    lane = lane_or_none(device, "mixed_attention", engine.lane)
    own = lane is not None and getattr(lane, "lane", "") == engine.lane
    return BesideParams.from_lane(lane) if lane is not None and own else None


def _latent(
    device: StepDevice, engine: StepEngine, chip: Chip, shape: AttentionShape, count: int, queries: int
) -> AttentionKind:
    gemm = device.lane("gemm", engine.lane)
    decode, prefill = device.lane("mla_decode", engine.lane), device.lane("mla_prefill", engine.lane)
    params = DecodeParams.from_lane(decode)
    at_decode = mla_decode_shape(
        params,
        decode,
        shape.n_heads * queries,
        shape.head_dim,
        shape.v_head_dim,
        shape.kv_bytes_per_token,
        shape.dtype,
    )
    at_prefill = mla_prefill_shape(
        prefill,
        shape.n_heads,
        shape.prefill_dim,
        shape.head_dim + shape.v_head_dim,
        shape.kv_bytes_per_token,
        shape.dtype,
    )
    return AttentionKind(
        chip=chip,
        count=count,
        shape=shape,
        decode_params=params,
        decode_shape=at_decode,
        prefill=prefill_form(chip, PrefillParams.from_lane(prefill, gemm), at_prefill),
        queries=queries,
    )


def _naive(kind: AttentionKind, engine: StepEngine) -> AttentionKind:
    """Return the kind with its score matrix in HBM: six passes over scores, three more launches."""
    launches = 3.0 * engine.elementwise_t0_s
    scored = replace(kind.prefill.shape, score_bytes_per_pair=SCORE_BYTES * kind.shape.n_heads)
    params = replace(kind.prefill.params, t0=kind.prefill.params.t0 + launches)
    return replace(
        kind,
        decode_params=replace(kind.decode_params, t0=kind.decode_params.t0 + launches),
        decode_shape=with_scores(
            kind.decode_shape,
            kind.shape.n_heads * kind.queries,
            kind.shape.n_kv_heads if kind.shape.kept < 1 else 0,
        ),
        prefill=replace(kind.prefill, shape=scored, params=params),
        _terms={},
    )


def attention_phases(
    kinds: Sequence[AttentionKind],
    mixed_factor: Callable[[int], float],
    n_decode: int,
    context_sum: int,
    longest: int,
    prefill: Sequence[tuple[int, int]],
    contexts: Sequence[int] | None,
    *,
    by_kernel: bool,
) -> list[Phase]:
    """Return the attention of all layers in one step; by kernel, of each kind of layer, chunks and decodes apart.

    A fixed time that both would have is charged once, as in ``StepModel.mixed_seconds``. ``mixed_factor`` is what
    decodes cost more beside a chunk of so many tokens; the other parameters as in ``StepModel.step_ns``.
    """
    longest_chunk = max((chunk[0] for chunk in prefill), default=0)
    seconds = hbm = compute = 0.0
    kernels: list[Phase] = []
    for number, kind in enumerate(kinds):
        chunks, decodes = kind.prefill.demands(prefill), NO_DEMANDS
        t0, factor, count = 0.0, 1.0, float(kind.count)
        if n_decode:
            x, most = kind.visible(n_decode, context_sum, longest, contexts)
            if longest_chunk > kind.one_call_above:
                added = kind.beside_time(Chunks.one_call(kind.prefill, prefill), n_decode, x, most)
                decodes = Demands(
                    *(float(each) for each in (added.seconds, added.hbm_demand, added.compute_demand))
                )
            else:
                terms = kind.terms(n_decode, kind.span(n_decode, x, most))
                t0 = max(float(terms.t0) - kind.prefill.params.t0, 0.0) if prefill else float(terms.t0)
                decodes, factor = terms.demands(float(x)), mixed_factor(longest_chunk)
        if by_kernel:
            own = Demands(t0 + factor * decodes.seconds, factor * decodes.hbm, factor * decodes.compute)
            for name, kernel in (("prefill", chunks), ("decode", own)):
                sizes = (count * kernel.seconds, count * kernel.hbm, count * kernel.compute)
                kernels.append(demanded(f"{name} attention {number}", *sizes))
            continue
        seconds += count * (chunks.seconds + t0 + factor * decodes.seconds)
        hbm += count * (chunks.hbm + factor * decodes.hbm)
        compute += count * (chunks.compute + factor * decodes.compute)
    return kernels if by_kernel else [demanded("attention", seconds, hbm, compute)]
