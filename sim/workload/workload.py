"""What is asked of the engine: all requests as columns, and one by one as the engine takes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..engine.request import Request
from ..random import uniform_one
from .prefix import PrefixIds

Ints = NDArray[np.int64]
LATEST_NS = 1 << 62
"""Latest arrival there may be: 146 years, half of what 64 bits hold [ns]."""
_CHUNK = 1024  # requests turned into objects at once


@dataclass(frozen=True, slots=True)
class LoadReport:
    """Where a workload comes from and what was done to it on the way.

    Attributes
    ----------
    source : path of the trace, or what was drawn
    format : trace format, or ``generated``
    time_unit : unit of the arrival column in the file (``s``, ``ms``, ``timestamp``, ...)
    origin : what time 0 was in the file
    rows : rows read, before dropping and the limit
    dropped : reason to rows left out
    out_of_order : arrivals before their predecessor's, sorted
    warnings : what a user should know, one line each
    """

    source: str
    format: str
    time_unit: str = "s"
    origin: str = "0"
    rows: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict[str, int])
    out_of_order: int = 0
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ClosedLoopLoad:
    """Users who send a request after the answer to the one before, or a client with so many at most in flight.

    Attributes
    ----------
    concurrency : users; the requests 0 to ``concurrency - 1`` arrive at 0
    think_time_ns : mean pause between an answer and the next request [ns]
    exponential : whether pauses are exponential instead of all equal
    turnaround_ns : time the client and network need on top, per request [ns]
    seed : the scenario's seed
    keeps_times : requests have arrival times of their own and only wait for a place among ``concurrency``
    """

    concurrency: int
    think_time_ns: int = 0
    exponential: bool = False
    turnaround_ns: int = 0
    seed: int = 0
    keeps_times: bool = False

    def next_arrival_ns(self, index: int, completed_ns: int) -> int:
        """Return when request ``index`` arrives if its user had the last answer at ``completed_ns`` [ns]."""
        think = self.think_time_ns
        if self.exponential and think:
            think = round(-think * float(np.log1p(-uniform_one(self.seed, "think_time", index))))
        return completed_ns + self.turnaround_ns + think


@dataclass(frozen=True, slots=True)
class Follows:
    """Requests that are sent after the answer to another one: later turns, results of tools.

    Attributes
    ----------
    after : index of the request whose answer is waited for, which comes earlier; -1: none, shape (n,)
    pause_ns : time between that answer and this request, shape (n,) [ns]
    """

    after: Ints
    pause_ns: Ints


@dataclass(frozen=True, slots=True)
class Workload:
    """All requests of a run, as columns in arrival order.

    Attributes
    ----------
    arrival_ns : arrival times from 0, ascending, shape (n,) [ns]; in a closed loop 0 until the engine sets it
    input_tokens, output_tokens : lengths, at least 1, shape (n,) [tokens]
    report : where it comes from
    priority : lower first, shape (n,), or None: all 0
    session : number of the session, -1 for none, shape (n,), or None: no sessions
    tenant : number of the tenant who asks, -1 for none, shape (n,), or None: no tenants
    slo_class : index into ``slo_classes``, shape (n,), or None: all of the first class
    slo_classes : names of classes
    request_ids : names in the trace, shape (n,), or None: their index
    prefix : what prompts share, or None: nothing
    answers_shared : whether ``prefix`` goes on over the answers, because later prompts hold them
    closed_loop : how arrivals follow completions, or None: arrivals are fixed
    follows : which requests wait for which answers, or None: none does
    measured : what the file measured of each request: ``ttft_s``, ``e2e_s``, ``tpot_s``, shape (n,) [s], NaN
        where unknown or, TPOT of one token, not defined
    """

    arrival_ns: Ints
    input_tokens: Ints
    output_tokens: Ints
    report: LoadReport
    priority: Ints | None = None
    session: Ints | None = None
    tenant: Ints | None = None
    slo_class: Ints | None = None
    slo_classes: tuple[str, ...] = ("default",)
    request_ids: NDArray[np.str_] | None = None
    prefix: PrefixIds | None = None
    answers_shared: bool = False
    closed_loop: ClosedLoopLoad | None = None
    follows: Follows | None = None
    measured: Mapping[str, NDArray[np.float64]] = field(default_factory=dict[str, NDArray[np.float64]])

    def __len__(self) -> int:
        """Return the number of requests."""
        return len(self.arrival_ns)

    def first(self, count: int) -> Workload:
        """Return the first so many requests as a load; all of them where some wait for others' answers."""
        if count >= len(self) or self.follows is not None:
            return self

        def cut(column: Any) -> Any:
            return None if column is None else column[:count]

        return replace(
            self,
            arrival_ns=cut(self.arrival_ns),
            input_tokens=cut(self.input_tokens),
            output_tokens=cut(self.output_tokens),
            priority=cut(self.priority),
            session=cut(self.session),
            slo_class=cut(self.slo_class),
            request_ids=cut(self.request_ids),
            measured={name: cut(values) for name, values in self.measured.items()},
        )

    def iter_requests(self, block_size: int | None = None) -> Iterator[Request]:
        """Yield the requests in arrival order, made as they are taken.

        Parameters
        ----------
        block_size : tokens in a KV block, for ``Request.block_hashes``; None leaves them empty
        """
        names: tuple[str, ...] = self.slo_classes
        for start in range(0, len(self), _CHUNK):
            stop = min(start + _CHUNK, len(self))
            chunk = slice(start, stop)
            hashes = self._hashes(start, stop, block_size)
            for offset, (arrival, prompt, answer, priority, session, tenant, slo_class) in enumerate(
                zip(
                    self.arrival_ns[chunk].tolist(),
                    self.input_tokens[chunk].tolist(),
                    self.output_tokens[chunk].tolist(),
                    _values(self.priority, chunk, 0),
                    _values(self.session, chunk, -1),
                    _values(self.tenant, chunk, -1),
                    _values(self.slo_class, chunk, 0),
                    strict=True,
                )
            ):
                index = start + offset
                yield Request(
                    index,
                    arrival,
                    prompt,
                    answer,
                    priority=priority,
                    block_hashes=next(hashes),
                    session=None if session < 0 else session,
                    tenant=None if tenant < 0 else tenant,
                    slo_class=names[int(slo_class)],
                    request_id=None if self.request_ids is None else str(self.request_ids[index]),
                )

    def _hashes(self, start: int, stop: int, block_size: int | None) -> Iterator[list[int] | tuple[()]]:
        if self.prefix is None or block_size is None:
            for _ in range(start, stop):
                yield ()
            return
        tokens = self.input_tokens[start:stop]
        if self.answers_shared:
            tokens = tokens + self.output_tokens[start:stop]
        keys, ends = self.prefix.block_keys(start, stop, tokens, block_size)
        for first, last in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
            yield keys[first:last].tolist()

    def summary(self) -> dict[str, Any]:
        """Return what ``trace inspect`` shows: counts, span, rate, lengths; None where undefined."""
        span_s = float(self.arrival_ns[-1] - self.arrival_ns[0]) / 1e9
        gaps = np.diff(self.arrival_ns)
        spread = float(gaps.std() / gaps.mean()) if len(gaps) and gaps.any() else None
        return {
            "source": self.report.source,
            "format": self.report.format,
            "time_unit": self.report.time_unit,
            "origin": self.report.origin,
            "rows": len(self),
            "dropped": dict(self.report.dropped),
            "out_of_order": self.report.out_of_order,
            "span_s": span_s,
            "rate_per_s": len(self) / span_s if span_s > 0 else None,
            "max_gap_s": float(gaps.max()) / 1e9 if len(gaps) else None,
            "gap_cv": spread,
            "input_tokens": _length_summary(self.input_tokens),
            "output_tokens": _length_summary(self.output_tokens),
            "repeated_prefix_share": self._repeated_share(),
            "warnings": list(self.report.warnings),
        }

    def _repeated_share(self) -> float | None:
        """Return the share of full prompt blocks that came before: the most a prefix cache can hit."""
        if self.prefix is None:
            return None
        size = 16 if self.input_tokens.sum() < 2**28 else 512  # bounds the memory for the keys
        keys, _ = self.prefix.block_keys(0, len(self), self.input_tokens, size)
        whole = int((self.input_tokens // size).sum())
        keys.sort()
        distinct = 1 + int(np.count_nonzero(keys[1:] != keys[:-1])) if len(keys) else 0
        return (len(keys) - distinct) / whole if whole else None


def _values(column: Ints | None, chunk: slice, default: int) -> list[int]:
    return column[chunk].tolist() if column is not None else [default] * (chunk.stop - chunk.start)


def _length_summary(tokens: Ints) -> dict[str, float]:
    p50, p90, p99 = np.percentile(tokens, [50, 90, 99]).tolist()
    return {
        "mean": float(tokens.mean()),
        "min": int(tokens.min()),
        "p50": p50,
        "p90": p90,
        "p99": p99,
        "max": int(tokens.max()),
        "sum": int(tokens.sum()),
    }
