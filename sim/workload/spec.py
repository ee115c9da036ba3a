"""The ``workload`` section of a scenario."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le
from pydantic import model_validator

from ...hwmodels.errors import unknown
from ...hwmodels.units import Count, Factor, PositiveCount, Seconds, Unbounded
from ..fields import Section
from .arrivals.base import AnyArrivals
from .arrivals.closed_loop import ClosedLoop
from .lengths import LengthDistribution
from .sessions import SessionsSpec
from .trace.formats import format_names

MOST_REQUESTS = 10**8
"""Most requests that are drawn; their columns take 24 bytes each."""
Sampling = Literal["greedy", "top_p_top_k"]


class TraceSpec(Section):
    """A file of requests to replay.

    Attributes
    ----------
    path : the file, compressed with gzip or not
    format : how to read it; ``auto`` tells by header or keys
    time_scale : factor on the intervals between arrivals; 0.5 replays twice as fast
    limit : only the earliest so many requests
    part : which run of a benchmark report that holds several, from 0
    same_prompt : columns that tell prompts apart: requests that agree in all of them repeat one whole prompt
        (data sets of load generators do), so a prefix cache finds it; without it only ``hash_ids`` are shared
    """

    path: str
    format: str = "auto"
    time_scale: Annotated[Factor, Gt(0)] = 1.0
    limit: PositiveCount | None = None
    part: Count | None = None
    same_prompt: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _known_format(self) -> TraceSpec:
        if self.format not in format_names():
            raise ValueError(unknown("trace format", self.format, format_names()))
        return self


class ExpertRouting(Section):
    """How tokens spread over the experts of a mixture.

    Attributes
    ----------
    kind : the distribution
    path : file that kind ``trace`` reads
    s : exponent of ``zipf``
    alpha : exponent of ``power_law``
    """

    kind: Literal["zipf", "uniform", "balanced_stride", "power_law", "trace"] = "zipf"
    s: Annotated[float, Ge(0), Le(100)] | None = None
    alpha: Annotated[float, Ge(0), Le(100)] | None = None
    path: str | None = None

    @model_validator(mode="after")
    def _parameters_of_kind(self) -> ExpertRouting:
        for key, kind in (("s", "zipf"), ("alpha", "power_law"), ("path", "trace")):
            if getattr(self, key) is not None and self.kind != kind:
                raise ValueError(f"{key} belongs to kind {kind}, not to {self.kind}")
        if self.kind == "trace" and self.path is None:
            raise ValueError("kind trace needs a path")
        return self


class WorkloadSpec(Section):
    """What is asked of the engine: a trace, or arrivals and lengths to draw.

    Attributes
    ----------
    trace : replay this file; with ``arrivals`` beside it, only its lengths, in the file's order
    arrivals : when requests come
    input_tokens, output_tokens : lengths of prompts and answers: a number or a distribution
    requests : how many to draw
    duration_s : draw all that arrive until then; with ``requests``, whichever ends first
    max_concurrency : most requests that the client keeps in flight; one that is due then is sent when another
        has been answered
    sampling : how tokens are chosen, which decides what the sampler costs
    expert_routing : how tokens spread over experts
    tenants : who asks: each tenant's name and its share of the requests, as relative weights
    sessions : what prompts have in common: system prompts, whole prompts that repeat, conversations
    """

    trace: TraceSpec | None = None
    arrivals: AnyArrivals | None = None
    input_tokens: LengthDistribution | None = None
    output_tokens: LengthDistribution | None = None
    requests: Annotated[Unbounded, Le(MOST_REQUESTS)] | None = None
    duration_s: Annotated[Seconds, Gt(0)] | None = None
    max_concurrency: PositiveCount | None = None
    sampling: Sampling = "greedy"
    expert_routing: ExpertRouting = ExpertRouting()
    tenants: dict[str, Annotated[float, Gt(0), Le(1e12)]] | None = None
    sessions: SessionsSpec | None = None

    @model_validator(mode="after")
    def _one_source(self) -> WorkloadSpec:
        drawn = [
            key
            for key in ("input_tokens", "output_tokens", "requests", "duration_s", "tenants", "sessions")
            if getattr(self, key)
        ]
        if self.max_concurrency is not None and isinstance(self.arrivals, ClosedLoop):
            raise ValueError("max_concurrency caps arrivals at a rate; a closed loop has its concurrency")
        if self.max_concurrency is not None and self.sessions and self.sessions.think_time_s is not None:
            raise ValueError(
                "max_concurrency and sessions.think_time_s exclude each other: users pace themselves"
            )
        if self.trace is not None:
            if drawn:
                hint = (
                    "; for fewer requests set trace.limit" if drawn[0] not in ("tenants", "sessions") else ""
                )
                raise ValueError(f"trace and {drawn[0]} exclude each other{hint}")
            return self
        for key in ("arrivals", "input_tokens", "output_tokens"):
            if getattr(self, key) is None:
                raise ValueError(f"needs {key}, or a trace instead (workload.trace.path)")
        if self.requests is None and self.duration_s is None:
            raise ValueError("needs requests or duration_s, how much to draw")
        return self
