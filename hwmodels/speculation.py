"""How long a step takes that verifies drafted tokens and drafts the next ones.

``t = target step with q rows a sequence + first draft pass (q rows a sequence, and the prompts) + (k - 1) passes of
one row a sequence``. A sequence's keys and values are read once for its q = 1 + k rows. Drafts run after the target,
on the same device, as vLLM runs them. Forms and lanes are those of plain steps; no lane of such a step was measured,
so everything here is unvalidated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast, final

import numpy as np
from numpy.typing import NDArray

from .attentiontimes import span_of, stretches
from .collectives import ALONE, Collectives
from .decodepieces import APART, FEW, LONGEST_NS, NANO
from .drafting import Draft
from .lowering import ParallelismLike
from .precision import Quantization, QuantizationLike
from .routing import Routing
from .spec import ModelSpec
from .stepmodel import StepModel
from .steptypes import Phase, StepDevice, StepEngine

LOOKUP_S_PER_TOKEN = 8e-9
"""Host time to look for an n-gram in one token of context [s].

Approximation: vLLM's search (a KMP scan of each sequence's tokens, up to 5-grams) as a C loop on one core of a server
took 7.9 to 8.2 ns a token of context; vLLM spreads large batches over up to 8 threads, which is left out.
"""


@final
class SpeculativeStepModel:
    """A target and what drafts for it, on one tensor-parallel group of a device.

    Parameters
    ----------
    device, engine, model, parallelism, quantization, sampling, routing, attention, fidelity, collectives : of the
        target, as in ``StepModel``
    num_speculative_tokens : draft passes of a step (k)
    width : candidates at each drafted position; all of them are verified [tokens]
    draft : what drafts on the device; None: n-gram lookup on the host

    Attributes
    ----------
    plain, verify : the target without drafted tokens, and with them
    first, later : the draft's pass over what the target has just computed, and each of the k - 1 passes after it
    queries : rows of a decoding sequence in ``verify``
    """

    def __init__(
        self,
        device: StepDevice,
        engine: StepEngine,
        model: ModelSpec,
        parallelism: ParallelismLike,
        quantization: QuantizationLike,
        *,
        num_speculative_tokens: int,
        width: int = 1,
        draft: Draft | None = None,
        sampling: Literal["greedy", "top_p_top_k"] | str = "greedy",
        routing: Routing | None = None,
        attention: Literal["flash", "naive"] | str = "flash",
        fidelity: Literal["step", "kernel"] = "step",
        collectives: Collectives = ALONE,
    ) -> None:
        def target(queries: int) -> StepModel:
            return StepModel(
                device,
                engine,
                model,
                parallelism,
                quantization,
                sampling=sampling,
                routing=routing,
                attention=attention,
                queries=queries,
                fidelity=fidelity,
                collectives=collectives,
            )

        def drafting(queries: int) -> StepModel | None:
            if draft is None:
                return None
            return StepModel(
                device,
                cast("StepEngine", _Hostless(engine)),
                draft.model,
                parallelism,
                draft.quantization,
                routing=routing,
                attention=attention,
                queries=queries,
                fidelity=fidelity,
                collectives=collectives,
            )

        self.device, self.engine, self.model = device, engine, model
        self.queries = 1 + num_speculative_tokens * width
        self.width = width
        self.passes = num_speculative_tokens
        self.plain, self.verify = target(1), target(self.queries)
        self.plan = self.plain.plan
        self.first, self.later = drafting(self.queries), drafting(width)
        self._fused: dict[tuple[int, int], _Fused] = {}
        self._alike = self.first is not None and _alike(self.verify, self.first)
        if self.first is not None and self._alike:
            for kind, same in zip(self.first.kinds, self.verify.kinds, strict=True):
                kind.remember_with(same)
        self._key_block = self._common_block()
        passes = (self.verify, self.first, self.later)
        self._one_wave = min(kind.one_wave for model in passes if model for kind in model.kinds)
        self.needs_contexts = self.plain.needs_contexts or bool(self.first and self.first.needs_contexts)

    def step_ns(
        self,
        n_decode: int,
        context_sum: int,
        longest: int,
        prefill: Sequence[tuple[int, int]],
        sampled: int,
        contexts: Sequence[int] | None = None,
    ) -> int:
        """Return the duration of one step [ns].

        Parameters
        ----------
        n_decode : sequences that verify: ``queries`` tokens each
        context_sum, longest : keys they read, those tokens included [tokens]
        prefill, sampled, contexts : as in ``StepModel.step_ns``; a sequence that verifies fewer tokens is a chunk
        """
        if not prefill and sampled == n_decode * self.queries:
            if self._key_block:
                total = context_sum if n_decode > self._one_wave else 0
                fused = self._fused_at(n_decode, span_of(n_decode, total, longest, self._key_block))
                return fused.one_ns(context_sum)
            sums, most = np.array([context_sum]), np.array([longest])
            return int(self.verify_run_ns(n_decode, sums, most, contexts)[0])
        batch = n_decode, context_sum, longest, prefill
        layers = self.verify.mixed_attention(*batch, contexts)
        target = self.verify.mixed_seconds(*batch, sampled, contexts, layers)
        found = target + self._draft_seconds(*batch, contexts, layers if self._alike else None)
        return int(found * NANO + 0.5)

    def verify_run_ns(
        self,
        n_decode: int,
        context_sums: NDArray[np.int64],
        longest: NDArray[np.int64],
        contexts: Sequence[int] | None = None,
    ) -> NDArray[np.int64]:
        """Return the durations of steps in which one batch verifies, shape (steps,) [ns].

        Parameters
        ----------
        n_decode : sequences
        context_sums, longest : keys read in each step, shape (steps,) [tokens]
        contexts : of a single step, where ``needs_contexts`` [tokens]
        """
        if self._key_block:
            sums = context_sums if n_decode > self._one_wave else np.zeros_like(context_sums)
            first, last = (
                span_of(n_decode, int(sums[at]), int(longest[at]), self._key_block) for at in (0, -1)
            )
            if first == last:  # it never falls
                return self._fused_at(n_decode, first).run_ns(context_sums)
            spans = span_of(np.array(n_decode), sums, longest, self._key_block)
            parts = [
                self._fused_at(n_decode, int(spans[start])).run_ns(context_sums[start:end])
                for start, end in stretches(spans)
            ]
            return np.concatenate(parts)
        rows = n_decode * self.queries
        seconds = self.verify.decode_seconds(n_decode, context_sums, longest, rows, contexts)
        if self.first is None or self.later is None:
            seconds = seconds + LOOKUP_S_PER_TOKEN * context_sums
        else:
            seconds = seconds + self.first.decode_seconds(n_decode, context_sums, longest, n_decode, contexts)
            if self.passes > 1:
                rows = n_decode * self.width
                later = self.later.decode_seconds(n_decode, context_sums, longest, rows, contexts)
                seconds = seconds + (self.passes - 1) * later
        return (seconds * NANO + 0.5).astype(np.int64)

    def _common_block(self) -> int:
        """Return the keys of a block where one formula times all three passes, else 0 [tokens]."""
        if self.first is None or self.later is None or self.passes == 1:
            return 0
        models = (self.verify, self.first, self.later)
        blocks = {model.kinds[0].decode_params.key_block for model in models if model.one_full}
        return int(blocks.pop()) if len(blocks) == 1 and all(model.one_full for model in models) else 0

    def _fused_at(self, batch: int, span: int) -> _Fused:
        """Return what times all three passes of a batch that keeps its span."""
        found = self._fused.get((batch, span))
        if found is None:
            assert self.first is not None
            assert self.later is not None
            each = (
                self.verify.piece(batch, batch * self.queries, span),
                self.first.piece(batch, batch, span),
                self.later.piece(batch, batch * self.width, span),
            )
            found = self._fused[batch, span] = _Fused(each, (1.0, 1.0, self.passes - 1.0))
        return found

    def later_batch(
        self, n_decode: int, context_sum: int, longest: int, prefill: Sequence[tuple[int, int]]
    ) -> tuple[int, int, int]:
        """Return sequences, summed and longest context of the draft's later passes [tokens].

        Approximation: contexts are those of the first pass, up to k tokens off in each pass.
        """
        reach = [new + cached for new, cached in prefill]
        return n_decode + len(prefill), context_sum + sum(reach), max(longest, *reach, 0)

    def _draft_seconds(
        self,
        n_decode: int,
        context_sum: int,
        longest: int,
        prefill: Sequence[tuple[int, int]],
        contexts: Sequence[int] | None,
        layers: Sequence[float] | None,
    ) -> float:
        """Return the time of drafting after a step with chunks [s]."""
        sequences, total, most = self.later_batch(n_decode, context_sum, longest, prefill)
        if self.first is None or self.later is None:
            return LOOKUP_S_PER_TOKEN * total
        seconds = self.first.mixed_seconds(
            n_decode, context_sum, longest, prefill, sequences, contexts, layers
        )
        if self.passes == 1:
            return seconds
        if contexts is not None:
            contexts = [*contexts, *(new + cached for new, cached in prefill)]
        later = self.later.decode_one(sequences, total, most, sequences * self.width, contexts)
        return seconds + (self.passes - 1) * later

    def phases(
        self,
        n_decode: int,
        context_sum: int,
        longest: int,
        prefill: Sequence[tuple[int, int]],
        sampled: int,
        contexts: Sequence[int] | None = None,
    ) -> tuple[Phase, ...]:
        """Return the phases of a step, the drafts' after the target's; parameters as in ``step_ns``."""
        found = self.verify.phases(n_decode, context_sum, longest, prefill, sampled, contexts)
        sequences, total, most = self.later_batch(n_decode, context_sum, longest, prefill)
        if self.first is None or self.later is None:
            host = LOOKUP_S_PER_TOKEN * total
            return (*found, Phase("draft_host", host, {"host": host}))
        first = self.first.phases(n_decode, context_sum, longest, prefill, sequences, contexts)
        if contexts is not None:
            contexts = [*contexts, *(new + cached for new, cached in prefill)]
        rows, more = sequences * self.width, float(self.passes - 1)
        later = self.later.phases(sequences, total, most, [], rows, contexts)
        times = [*((phase, 1.0) for phase in first), *((phase, more) for phase in later)]
        drafts = (
            Phase(
                f"draft_{phase.name}",
                phase.seconds * factor,
                {resource: demand * factor for resource, demand in phase.demands.items()},
                phase.seconds_on_share,
            )
            for phase, factor in times
            if phase.seconds * factor > 0.0
        )
        return (*found, *drafts)

    def peak_loads(
        self,
        n_decode: int,
        context_sum: int,
        longest: int,
        prefill: Sequence[tuple[int, int]],
        sampled: int,
        contexts: Sequence[int] | None = None,
    ) -> Mapping[str, float]:
        """Return the largest share of each resource that a phase of a step holds; parameters as in ``step_ns`` [-]."""
        found = dict(self.verify.peak_loads(n_decode, context_sum, longest, prefill, sampled, contexts))
        if self.first is None or self.later is None:
            return found
        sequences, total, most = self.later_batch(n_decode, context_sum, longest, prefill)
        if self._alike:
            tokens = n_decode * self.queries + sum(chunk[0] for chunk in prefill)
            passes = [self.first.peaks_without_attention(tokens, sequences)]
        else:
            passes = [self.first.peak_loads(n_decode, context_sum, longest, prefill, sequences, contexts)]
        if self.passes > 1:
            if contexts is not None:
                contexts = [*contexts, *(new + cached for new, cached in prefill)]
            rows = sequences * self.width
            passes.append(self.later.peak_loads(sequences, total, most, (), rows, contexts))
        for each in passes:
            for name, share in each.items():
                found[name] = max(found.get(name, 0.0), share)
        return found


@final
class _Fused:
    """The time of a target's step and its draft passes as one formula of the keys read.

    Parameters
    ----------
    pieces : of each of the three, as ``StepModel.piece`` returns them
    times : how often each runs in a step
    """

    def __init__(self, pieces: Sequence[Sequence[Any]], times: Sequence[float]) -> None:
        columns = [np.array(column, dtype=np.float64) for column in zip(*pieces, strict=True)]
        offset, q, constant, inverse_q, scale, fixed = columns
        often = NANO * np.array(times)
        scale = scale * often
        self._columns = tuple(column[:, None] for column in (offset, q, constant, inverse_q, scale))
        self._numbers: list[list[float]] = []
        for *numbers, factor in zip(*(column.tolist() for column in (*columns[:4], scale)), strict=True):
            if self._numbers and self._numbers[-1][:4] == numbers:
                self._numbers[-1].append(factor)  # the same attention, in other layers
            else:
                self._numbers.append([*numbers, factor])
        self._fixed = float((fixed * often).sum() + 0.5)

    def run_ns(self, context_sums: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the durations of steps that read so many keys, shape (steps,) [ns]."""
        if len(context_sums) <= FEW:
            return np.array([self.one_ns(keys) for keys in context_sums.tolist()], dtype=np.int64)
        return self._many_ns(context_sums)

    def one_ns(self, keys: int) -> int:
        """Return the duration of one step, in plain numbers where they are sure to be rounded as arrays are [ns]."""
        total = 0.0
        for offset, q, constant, inverse_q, *scales in self._numbers:
            attention = ((keys + offset) ** q + constant) ** inverse_q
            for scale in scales:
                total += attention * scale
        total += self._fixed
        whole = int(total)
        if APART < total - whole < 1.0 - APART and total < LONGEST_NS:
            return whole
        return int(self._many_ns(np.array([keys]))[0])

    def _many_ns(self, context_sums: NDArray[np.int64]) -> NDArray[np.int64]:
        offset, q, constant, inverse_q, scale = self._columns
        y = context_sums + offset
        np.power(y, q, y)
        np.add(y, constant, y)
        np.power(y, inverse_q, y)
        np.multiply(y, scale, y)
        total = np.add.reduce(y, axis=0)
        np.add(total, self._fixed, total)
        return total.astype(np.int64)


def _alike(target: StepModel, draft: StepModel) -> bool:
    """Tell whether both attend alike: what a layer takes in a step of one is what it takes in the other's."""
    kinds = zip(target.kinds, draft.kinds, strict=False)
    return len(target.kinds) == len(draft.kinds) and all(kind.alike(other) for kind, other in kinds)


def draft_quantization(weights: str, target: QuantizationLike) -> Quantization:
    """Return a draft model's number formats: weights of its own, the target's KV dtype."""
    return Quantization(weights=weights, kv_cache=target.kv_cache)


class _Hostless:
    """An engine whose host work is not on a draft pass's way.

    Approximation: draft passes are launched while the device is busy with the target; what preparing them costs beyond
    the target's own host time was not measured and is left out.
    """

    host_exposed_s = 0.0
    host_per_seq_s = 0.0

    def __init__(self, engine: StepEngine) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)
