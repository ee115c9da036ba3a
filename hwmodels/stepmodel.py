"""How long one engine step takes: the only place where kernels, launch gaps and host time become a step.

``t = L (gemms(m_pad) + elementwise(m_pad) + attention(batch)) + 2 L allreduce(2 m H) + head(rows_pad) +
sampler(rows) + host_exposed + host_per_seq rows``. A run of k decode steps is one array; a single step is the
run of one, so the two agree to the nanosecond however a run is cut.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, final

import numpy as np
from numpy.typing import NDArray

from .attentiontimes import AttentionKind, attention_kinds, attention_phases, stretches
from .cascade import SharedPrefix
from .collectives import ALONE, Collectives
from .decodepieces import FEW, NANO, DecodePiece, Ramps
from .errors import MemboundError, unknown
from .lowering import ModelPlan, Parallelism, ParallelismLike, UnsupportedError, lower_model
from .precision import Quantization, QuantizationLike
from .routing import Routing, Zipf
from .selection import selection_of
from .spec import ModelSpec
from .steptypes import Phase as Phase
from .steptypes import StepDevice, StepEngine, as_phase, chip_of, peaks, phases_of
from .timing.decodes_beside import Chunks
from .timing.form import KERNEL_TIME_FIELDS, KernelTime
from .timing.hop import Network
from .timing.sampler import PASS_BYTES, SamplerParams, sampler_time
from .tokenphases import TokenPhases
from .tokentimes import matrix_groups, padded, token_times
from .unmeasured import refuse_untimed

Scalar = NDArray[np.float64]
_Constants = tuple[float, Scalar, Scalar, Scalar, Scalar, Scalar]
SAMPLERS = ("greedy", "top_p_top_k")
ATTENTIONS = ("flash", "naive")
_ROWS_AT_ONCE = 64


@final
class StepModel:
    """One model served by one engine on one tensor-parallel group of a device.

    Parameters
    ----------
    device, engine, model : profiles and model; see ``StepDevice`` and ``StepEngine`` for what is read of them
    parallelism : ranks of the group; ``PipelineStepModel`` is for several stages
    quantization : dtypes of weights, activations and KV cache
    sampling : ``greedy`` or ``top_p_top_k``
    routing : how tokens choose experts; real traffic (``Zipf(0.8)``) if not given
    attention : ``flash``, or ``naive`` with the score matrix written to and read from HBM
    queries : tokens that each decoding sequence computes in a step: 1, or one and the drafted ones it verifies
    fidelity : what ``phases`` returns: the parts of a step, or its kernels (those of identical layers together)
    plan : one stage of a pipeline, already lowered; the whole model if not given
    network : what the next stage is behind; None: the link inside the machine
    observation : last tokens of a prompt whose queries choose what is kept of its KV; 0: all is kept [tokens]
    collectives : how the group sums
    cascade : a prefix that a batch shares may be read once; nothing changes where ``shared_prefix`` is None

    Attributes
    ----------
    one_full : all layers that attend are alike and see every key
    shared_prefix : what reads a prefix that decoding sequences share; None where layers are not ``one_full`` or keep
        latents, of which vLLM reads none so, or where it is not asked for

    Raises
    ------
    MemboundError
        An unsupported combination, or an unknown sampler.
    """

    def __init__(
        self,
        device: StepDevice,
        engine: StepEngine,
        model: ModelSpec,
        parallelism: ParallelismLike | None = None,
        quantization: QuantizationLike | None = None,
        *,
        sampling: Literal["greedy", "top_p_top_k"] | str = "greedy",
        routing: Routing | None = None,
        attention: Literal["flash", "naive"] | str = "flash",
        queries: int = 1,
        fidelity: Literal["step", "kernel"] = "step",
        plan: ModelPlan | None = None,
        network: Network | None = None,
        observation: int = 0,
        collectives: Collectives = ALONE,
        cascade: bool = False,
    ) -> None:
        if sampling not in SAMPLERS:
            raise MemboundError(unknown("sampler", sampling, SAMPLERS, "workload.sampling"))
        if attention not in ATTENTIONS:
            raise MemboundError(unknown("attention kernel", attention, ATTENTIONS, "kernels.attention"))
        self.device = device
        self.engine = engine
        self.model = model
        self.queries = queries
        self.chip = chip_of(device)
        if plan is None and parallelism is not None and parallelism.pipeline_parallel_size > 1:
            raise UnsupportedError(
                f"parallelism.pipeline_parallel_size is {parallelism.pipeline_parallel_size}; allowed here: 1"
            )
        self.plan = plan or lower_model(
            model, parallelism or Parallelism(), quantization or Quantization(), device.peak_flops
        )
        if self.chip.roofline3:
            refuse_untimed(model, self.plan)
        self.kinds: tuple[AttentionKind, ...] = attention_kinds(
            device, engine, self.chip, self.plan, naive=attention == "naive", queries=queries
        )
        self.tokens = token_times(
            device, engine, self.chip, self.plan, routing or Zipf(), network, collectives=collectives
        )
        self.selection = (
            selection_of(self.chip, self.tokens.streaming, self.kinds, observation) if observation else None
        )
        self._head = matrix_groups(device, engine, Counter([self.plan.head]))[0] if self.plan.head.n else None
        self._capture = tuple(sorted(engine.capture_sizes))
        self._sampler = sampler_params(engine, sampling)
        # Recurrent states are read and written once per sequence and step.
        self._state_seconds = 2.0 * self.plan.state_bytes / (engine.elementwise_eb * self.chip.bandwidth)
        self._host_s = engine.host_exposed_s, engine.host_per_seq_s
        self._beside_chunks = engine.mixed_decode_factor, engine.mixed_decode_threshold_tokens
        self._heads: dict[int, float] = {}
        self._bases: dict[int, float] = {}
        self._without_attention: dict[tuple[int, int], float] = {}
        self._pieces: dict[tuple[int, int, int], _Constants] = {}
        self.by_kernel = fidelity == "kernel"
        self._token_phases = TokenPhases(self.tokens, by_kernel=self.by_kernel)
        self._phases_of_rows: dict[int, tuple[Phase, ...]] = {}
        self._peaks: dict[tuple[int, int], dict[str, float]] = {}
        self._durations: dict[tuple[int, int], DecodePiece] = {}
        self._ramps = Ramps()
        self.one_full = len(self.kinds) == 1 and self.kinds[0].full
        self.shared_prefix = (
            SharedPrefix(self.chip, self.tokens.streaming, self.kinds[0])
            if cascade and self.one_full and self.kinds[0].shape.kind == "gqa"
            else None
        )
        self.needs_contexts = any(kind.shape.window for kind in self.kinds)

    def step_ns(
        self,
        n_decode: int,
        context_sum: int,
        longest: int,
        prefill: Sequence[tuple[int, int]],
        sampled: int,
        contexts: Sequence[int] | None = None,
        selecting: tuple[int, int] | None = None,
        shared: int = 0,
    ) -> int:
        """Return the duration of one step [ns].

        Parameters
        ----------
        n_decode : sequences that decode: ``queries`` scheduled tokens each
        context_sum, longest : keys they read, the new token included: all together, and by the longest
            [tokens]
        prefill : (new tokens, tokens cached before) of every other scheduled sequence [tokens]
        sampled : rows that reach the output head and the sampler
        contexts : keys each sequence reads, where ``needs_contexts`` [tokens]
        selecting : entries of the prompts that end in this step, and how many of them are kept, where that is
            chosen then [tokens]
        shared : leading keys of all sequences that decode, which ``shared_prefix`` reads once [tokens]
        """
        if shared and self.shared_prefix is not None:
            own = (context_sum - n_decode * shared, longest - shared)
            return self.step_ns(n_decode, *own, prefill, sampled, None, selecting) + self.shared_prefix.ns(
                n_decode, shared
            )
        if not prefill and sampled == n_decode * self.queries and selecting is None:
            return int(self.decode_run_ns(n_decode, context_sum, longest, 1, contexts)[0])
        seconds = self.mixed_seconds(n_decode, context_sum, longest, prefill, sampled, contexts)
        if selecting is not None and self.selection is not None:
            seconds += float(self.selection.time(*selecting).seconds)
        return int(seconds * NANO + 0.5)

    def decode_run_ns(
        self,
        n_decode: int,
        context_sum: int,
        longest: int,
        steps: int,
        contexts: Sequence[int] | None = None,
        shared: int = 0,
    ) -> NDArray[np.int64]:
        """Return the durations of consecutive decode steps, every context growing by one a step [ns].

        Parameters
        ----------
        n_decode, context_sum, longest, contexts, shared : of the first step, as in ``step_ns``
        steps : number of steps

        Returns
        -------
        int64 array of shape (steps,); its first element is the ``step_ns`` of that batch
        """
        if not self.one_full:
            return self._run_of_kinds(n_decode, context_sum, longest, steps, contexts)
        if shared and self.shared_prefix is not None:
            own = (context_sum - n_decode * shared, longest - shared)
            return self.decode_run_ns(n_decode, *own, steps) + self.shared_prefix.ns(n_decode, shared)
        kind, at, keys = self.kinds[0], 0, context_sum
        out = np.empty(steps, dtype=np.int64)
        while at < steps:
            span = kind.span(n_decode, keys, longest)
            piece = self._durations.get((n_decode, span)) or self._piece(n_decode, span)
            count = min(kind.steady_steps(n_decode, keys, longest), steps - at)
            end = at + count
            few = piece.few_ns(keys, count) if count <= FEW else None
            if few is None:
                out[at:end] = piece.run_ns(context_sum, self._ramps.of(n_decode, steps)[at:end])
            else:
                out[at:end] = few
            at, keys, longest = end, keys + n_decode * count, longest + count
        return out

    def phases(
        self,
        n_decode: int,
        context_sum: int,
        longest: int,
        prefill: Sequence[tuple[int, int]],
        sampled: int,
        contexts: Sequence[int] | None = None,
        selecting: tuple[int, int] | None = None,
        shared: int = 0,
    ) -> tuple[Phase, ...]:
        """Return the phases of a step (parameters as in ``step_ns``); their seconds sum to it, unrounded."""
        if shared and self.shared_prefix is not None:
            own = (context_sum - n_decode * shared, longest - shared)
            *kernels, host = self.phases(n_decode, *own, prefill, sampled, None, selecting)
            prefix = self.shared_prefix.time(np.array([float(n_decode)]), np.array([float(shared)]))
            return (*kernels, as_phase("shared prefix", prefix), host)
        m = padded(self._capture, n_decode * self.queries + sum(chunk[0] for chunk in prefill))
        sequences = n_decode + len(prefill)
        attention = self._attention_phases(n_decode, context_sum, longest, prefill, contexts)
        found = [*self._token_phases.at(m), *attention, *self._head_phases(sampled)]
        if self._state_seconds:
            found.append(as_phase("state", self.state_time(np.array([sequences]))))
        if selecting is not None and self.selection is not None:
            found.append(as_phase("selection", self.selection.time(*selecting)))
        exposed, each = self._host_s
        seconds = exposed + each * sequences
        return (*(phase for phase in found if phase.seconds > 0.0), Phase("host", seconds, {"host": seconds}))

    def peak_loads(
        self,
        n_decode: int,
        context_sum: int,
        longest: int,
        prefill: Sequence[tuple[int, int]],
        sampled: int,
        contexts: Sequence[int] | None = None,
        *more: Any,
    ) -> Mapping[str, float]:
        """Return the largest share of each resource that a phase of a step holds; parameters as in ``step_ns`` [-]."""
        if more or self._state_seconds:
            return peaks(self.phases(n_decode, context_sum, longest, prefill, sampled, contexts, *more))
        tokens = n_decode * self.queries + sum(chunk[0] for chunk in prefill)
        attention = self._attention_phases(n_decode, context_sum, longest, prefill, contexts)
        return peaks(attention, self.peaks_without_attention(tokens, sampled))

    def peaks_without_attention(self, tokens: int, sampled: int) -> Mapping[str, float]:
        """Return ``peak_loads`` of all but attention in a step of so many tokens and rows sampled [-]."""
        key = (padded(self._capture, tokens), sampled)
        found = self._peaks.get(key)
        if found is None:
            found = self._peaks[key] = peaks((*self._token_phases.at(key[0]), *self._head_phases(sampled)))
        return found

    def _attention_phases(self, *batch: Any) -> list[Phase]:
        return attention_phases(self.kinds, self._mixed_factor, *batch, by_kernel=self.by_kernel)

    def _head_phases(self, sampled: int) -> tuple[Phase, ...]:
        """Return output head and sampler for so many rows."""
        found = self._phases_of_rows.get(sampled)
        if found is None:
            rows = _neighbours(sampled)
            times = self._rows_times(rows) if self.by_kernel else {"head": self.rows_time(rows)}
            columns = [phases_of(name, time, len(rows)) for name, time in times.items()]
            self._phases_of_rows.update(zip(rows.tolist(), zip(*columns, strict=True), strict=True))
            found = self._phases_of_rows[sampled]
        return found

    def padded(self, m: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return what each token count is padded to: the next capture size; itself above the largest."""
        if not self._capture:
            return m
        sizes = np.array(self._capture, dtype=np.int64)
        found = sizes[np.minimum(np.searchsorted(sizes, m), len(sizes) - 1)]
        return np.where(m <= sizes[-1], found, m)

    def rows_time(self, sampled: NDArray[np.int64]) -> KernelTime:
        """Return the time of output head and sampler for each number of rows, split by cause [s]."""
        head, sampler = self._head_and_sampler(sampled)
        return (head + sampler).times(np.where(sampled > 0, 1.0, 0.0))

    def _rows_times(self, sampled: NDArray[np.int64]) -> dict[str, KernelTime]:
        """Return ``rows_time`` kernel by kernel."""
        there = np.where(sampled > 0, 1.0, 0.0)
        names = zip(("head", "sampler"), self._head_and_sampler(sampled), strict=True)
        return {name: time.times(there) for name, time in names}

    def _head_and_sampler(self, sampled: NDArray[np.int64]) -> tuple[KernelTime, KernelTime]:
        if self._head is None:
            nothing = KernelTime(*(np.zeros(len(sampled)),) * len(KERNEL_TIME_FIELDS))
            return nothing, nothing
        rows = self.padded(sampled).astype(np.float64)
        head = self._head.time(self.chip, np.maximum(rows, 1.0))
        # The sampler's bytes are counted at the engine's share of HBM, whatever the device's own kernels reach.
        streaming = replace(self.tokens.streaming, eb=self.engine.elementwise_eb)
        sampler = sampler_time(
            self.chip, streaming, self._sampler, sampled.astype(np.float64), self.plan.vocab
        )
        return head, sampler

    def state_time(self, sequences: NDArray[np.int64]) -> KernelTime:
        """Return the time to read and write the recurrent states of each number of sequences [s]."""
        moved = self._state_seconds * sequences.astype(np.float64)
        return KernelTime(hbm_kv=moved, hbm_demand=moved, compute_demand=moved)

    def host_seconds(self, sequences: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the host time that the device waits for, by scheduled sequences [s]."""
        return self.engine.host_exposed_s + self.engine.host_per_seq_s * sequences.astype(np.float64)

    def mixed_factors(self, longest_chunk: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return what decode attention costs more beside chunks of so many tokens, in calls of its own [-]."""
        engine = self.engine
        return np.where(longest_chunk > engine.mixed_decode_threshold_tokens, engine.mixed_decode_factor, 1.0)

    def weight_bytes(self, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the weights that steps of so many tokens read on one rank; of experts, the touched [B]."""
        counts, where = np.unique(tokens, return_inverse=True)
        total = np.full(len(counts), self.plan.dense_weight_bytes)
        for group in self.tokens.experts:
            total = total + group.touched_bytes(counts.astype(np.float64))
        return total[where]

    def _piece(self, batch: int, span: int) -> DecodePiece:
        """Return what decode steps take whose longest and mean sequences keep their numbers of key blocks."""
        found = self._durations.get((batch, span))
        if found is None:
            kind = self.kinds[0]
            found = DecodePiece(batch, kind.terms(batch, span), kind.count, self._base(batch))
            self._durations[batch, span] = found
        return found

    def _run_of_kinds(
        self, batch: int, context_sum: int, longest: int, steps: int, contexts: Sequence[int] | None
    ) -> NDArray[np.int64]:
        """Return a run's durations where layers differ in shape or window [ns]."""
        seconds = np.full(steps, self._base(batch))
        for kind in self.kinds:
            self._add_attention(
                seconds, kind, batch, *kind.visible_run(batch, context_sum, longest, steps, contexts)
            )
        return (seconds * NANO + 0.5).astype(np.int64)

    def _add_attention(
        self,
        seconds: NDArray[np.float64],
        kind: AttentionKind,
        batch: int,
        sums: NDArray[np.int64],
        longest: NDArray[np.int64],
    ) -> None:
        """Add one kind of decode attention to the time of steps that see so many keys [s]."""
        x, spans = sums.astype(np.float64), kind.spans(batch, sums, longest)
        for start, end in stretches(spans):
            terms = kind.terms(batch, int(spans[start]))
            seconds[start:end] += kind.count * (terms.body(x[start:end]) + (terms.t0 + terms.extra))

    def decode_seconds(
        self,
        n_decode: int,
        context_sums: NDArray[np.int64],
        longest: NDArray[np.int64],
        sampled: int,
        contexts: Sequence[int] | None = None,
    ) -> NDArray[np.float64]:
        """Return the time of decode steps of one batch with any contexts, shape (steps,) [s].

        Parameters
        ----------
        n_decode, sampled : of every step, as in ``step_ns``
        context_sums, longest : keys read in each step, shape (steps,) [tokens]
        contexts : of a single step, where ``needs_contexts``
        """
        if self.one_full:
            spans = self.kinds[0].spans(n_decode, context_sums, longest)
            pieces = [
                self._one_piece(n_decode, sampled, int(spans[start]), context_sums[start:end])
                for start, end in stretches(spans)
            ]
            return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        alone = self._alone(n_decode, sampled)
        seconds = np.full(len(context_sums), alone)
        for kind in self.kinds:
            if not kind.shape.window:
                kept = kind.shape.keys_kept
                self._add_attention(seconds, kind, n_decode, kept(context_sums), kept(longest))
                continue
            for step in range(len(seconds)):
                seen, most = kind.visible(n_decode, int(context_sums[step]), int(longest[step]), contexts)
                self._add_attention(
                    seconds[step : step + 1], kind, n_decode, np.array([seen]), np.array([most])
                )
        return seconds

    def decode_one(
        self, n_decode: int, context_sum: int, longest: int, sampled: int, contexts: Sequence[int] | None
    ) -> float:
        """Return ``decode_seconds`` of a single step that is part of no run, in plain numbers [s]."""
        seconds = self._alone(n_decode, sampled)
        for kind in self.kinds:
            x, most = kind.visible(n_decode, context_sum, longest, contexts)
            terms = kind.terms(n_decode, kind.span(n_decode, x, most))
            seconds += kind.count * (terms.body(float(x)) + terms.t0 + terms.extra)
        return float(seconds)

    def _one_piece(
        self, batch: int, sampled: int, span: int, context_sums: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Return the time of decode steps that keep their span, as ``DecodePiece`` does [s]."""
        offset, q, constant, inverse_q, scale, fixed = self.piece(batch, sampled, span)
        y = context_sums.astype(np.float64)
        np.add(y, offset, y)
        np.power(y, q, y)
        np.add(y, constant, y)
        np.power(y, inverse_q, y)
        np.multiply(y, scale, y)
        np.add(y, fixed, y)
        return y

    def piece(self, batch: int, sampled: int, span: int) -> _Constants:
        """Return what turns summed keys into the time of decode steps, as in ``_one_piece``.

        ``scale (constant + (keys + offset)^q)^(1/q) + fixed`` [s]: offset, q, constant, 1/q, scale and fixed.
        """
        constants = self._pieces.get((batch, sampled, span))
        if constants is None:
            kind = self.kinds[0]
            terms = kind.terms(batch, span)
            fixed = self._alone(batch, sampled) + kind.count * (terms.t0 + terms.extra)
            constants = self._pieces[batch, sampled, span] = (
                float(terms.offset),
                np.array(terms.q),
                np.array(terms.constant),
                np.array(1.0 / terms.q),
                np.array(kind.count * terms.slope),
                np.array(fixed),
            )
        return constants

    def _alone(self, n_decode: int, sampled: int) -> float:
        """Return a decode step's time without attention [s]."""
        found = self._without_attention.get((n_decode, sampled))
        if found is None:
            found = self._without_attention[n_decode, sampled] = (
                self.tokens.seconds(padded(self._capture, n_decode * self.queries))
                + self._rows(sampled)
                + self._per_sequence(n_decode)
            )
        return found

    def mixed_seconds(
        self,
        n_decode: int,
        context_sum: int,
        longest: int,
        prefill: Sequence[tuple[int, int]],
        sampled: int,
        contexts: Sequence[int] | None,
        layers: Sequence[float] | None = None,
    ) -> float:
        """Return a step's duration, unrounded; ``layers`` is its ``mixed_attention``, the rest as in ``step_ns``."""
        m = n_decode * self.queries
        for new, _ in prefill:
            m += new
        seconds = (
            self.tokens.seconds(padded(self._capture, m))
            + self._rows(sampled)
            + self._per_sequence(n_decode + len(prefill))
        )
        if layers is None:
            layers = self.mixed_attention(n_decode, context_sum, longest, prefill, contexts)
        for kind, each in zip(self.kinds, layers, strict=True):
            seconds += kind.count * each
        return float(seconds)

    def mixed_attention(
        self,
        n_decode: int,
        context_sum: int,
        longest: int,
        prefill: Sequence[tuple[int, int]],
        contexts: Sequence[int] | None,
    ) -> list[float]:
        """Return the attention of a step in one layer of each kind; parameters as in ``step_ns`` [s]."""
        found: list[float] = []
        longest_chunk = 0
        for new, _ in prefill:
            if new > longest_chunk:
                longest_chunk = new
        for kind in self.kinds:
            t0 = body = 0.0
            if n_decode:
                x, most = kind.visible(n_decode, context_sum, longest, contexts)
                if longest_chunk > kind.one_call_above:
                    sums = Chunks.one_call(kind.prefill, prefill)
                    body = float(kind.beside_time(sums, n_decode, x, most).seconds)
                else:
                    terms = kind.terms(n_decode, kind.span(n_decode, x, most))
                    t0 = terms.t0
                    body = self._mixed_factor(longest_chunk) * (terms.body(float(x)) + terms.extra)
            if prefill:
                t0 = max(t0, kind.prefill.params.t0)
                body += kind.prefill.body(prefill)
            found.append(float(t0 + body))
        return found

    def _mixed_factor(self, longest_chunk: int) -> float:
        """Return what decode attention costs more beside a chunk of so many tokens [-]."""
        factor, above = self._beside_chunks
        return factor if longest_chunk > above else 1.0

    def _base(self, batch: int) -> float:
        """Return a decode step's time without attention [s]."""
        found = self._bases.get(batch)
        if found is None:
            found = (
                self.tokens.seconds(padded(self._capture, batch * self.queries))
                + self._rows(batch * self.queries)
                + self._per_sequence(batch)
            )
            self._bases[batch] = found
        return found

    def _rows(self, sampled: int) -> float:
        """Return the time of output head and sampler [s]."""
        found = self._heads.get(sampled)
        if found is None:
            rows = _neighbours(sampled)
            seconds = np.broadcast_to(self.rows_time(rows).seconds, rows.shape)
            self._heads.update(zip(rows.tolist(), seconds.tolist(), strict=True))
            found = self._heads[sampled]
        return found

    def _per_sequence(self, sequences: int) -> float:
        """Return recurrent states and the host time that the device waits for, by scheduled sequences [s]."""
        exposed, each = self._host_s
        return exposed + each * sequences + self._state_seconds * sequences


def _neighbours(rows: int) -> NDArray[np.int64]:
    """Return the row counts computed together with ``rows``: many cost little more than one."""
    first = rows // _ROWS_AT_ONCE * _ROWS_AT_ONCE
    return np.arange(first, first + _ROWS_AT_ONCE)


def sampler_params(engine: StepEngine, sampling: str) -> SamplerParams:
    """Return what an engine's way of sampling takes; ``sampling`` is one of ``SAMPLERS``."""
    if sampling == "greedy":
        return SamplerParams(
            engine.sampler_greedy_t0_s, engine.sampler_greedy_bytes_per_entry, PASS_BYTES[sampling]
        )
    return SamplerParams(
        engine.sampler_topk_t0_s,
        engine.sampler_topk_bytes_per_entry,
        PASS_BYTES[sampling],
        engine.sampler_topk_serial_s_per_entry,
    )
