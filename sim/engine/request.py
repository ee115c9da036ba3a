"""One request on its way through an engine."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..kvcache.base import KVAllocator
    from .speculative import Drafted


class Status(IntEnum):
    """Where a request stands; written only by the engine."""

    WAITING = 0
    RUNNING = 1
    PREEMPTED = 2
    COMPLETED = 3
    REJECTED = 4
    ABORTED = 5


RUNNING, COMPLETED = Status.RUNNING, Status.COMPLETED
"""By these names they are found five times as quickly as through their class."""


class Request:
    """A request: what it asks, and where the engine has got with it.

    Parameters
    ----------
    index : position in the workload, from 0; the key of every random draw made for it
    arrival_ns : arrival at the engine [ns]
    input_tokens, output_tokens : prompt length, and length of the answer, which is always reached
    max_tokens : output limit known to the scheduler; None means it equals ``output_tokens``
    priority : lower is served first under ``scheduling_policy: priority``
    block_hashes : content keys of the leading *full* KV blocks that other requests may share, chained so that
        an equal key means an equal prefix; blocks beyond them hold content nobody else has
    tenant : number of the tenant who asks, None if nobody is named
    request_id : name shown to people; defaults to the index

    Attributes
    ----------
    remote_kv : the KV of its prompt is on another replica, from where it comes when there is room for it
    """

    __slots__ = (
        "arrival_ns",
        "block_hashes",
        "draft",
        "first_scheduled_ns",
        "first_token_ns",
        "first_token_step",
        "index",
        "input_tokens",
        "kv",
        "last_token_ns",
        "max_tokens",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_evicted_tokens",
        "num_output_tokens",
        "num_pending_tokens",
        "num_preemptions",
        "output_tokens",
        "priority",
        "reject_reason",
        "remote_kv",
        "request_id",
        "scheduled_step",
        "session",
        "slo_class",
        "status",
        "stretch_position",
        "stretch_step",
        "tenant",
    )  # fmt: skip

    def __init__(
        self,
        index: int,
        arrival_ns: int,
        input_tokens: int,
        output_tokens: int,
        *,
        max_tokens: int | None = None,
        priority: int = 0,
        block_hashes: Sequence[int] = (),
        session: int | None = None,
        tenant: int | None = None,
        slo_class: str = "default",
        request_id: str | None = None,
    ) -> None:
        self.index = index
        self.arrival_ns = arrival_ns
        self.input_tokens = input_tokens
        self.output_tokens = output_tokens
        self.max_tokens = output_tokens if max_tokens is None else max_tokens
        self.priority = priority
        self.block_hashes = block_hashes
        self.session = session
        self.tenant = tenant
        self.slo_class = slo_class
        self.request_id = request_id
        self.status = Status.WAITING
        self.num_computed_tokens = 0
        self.num_evicted_tokens = 0  # computed tokens whose keys and values are dropped
        self.num_output_tokens = 0
        self.num_pending_tokens = 0
        self.num_cached_tokens = 0
        self.num_preemptions = 0
        self.first_scheduled_ns = -1
        self.first_token_ns = -1
        self.last_token_ns = -1
        self.reject_reason: str | None = None
        self.kv: object = None
        self.remote_kv = False
        self.draft: Drafted | None = None  # of its speculation, where the engine speculates
        # Kept for the recorder: its first step, the step of its first token, and where the present stretch of
        # one token a step began.
        self.scheduled_step = -1
        self.first_token_step = -1
        self.stretch_step = -1
        self.stretch_position = -1

    @property
    def num_tokens(self) -> int:
        """Tokens known so far: the prompt and the answer's tokens already delivered [tokens]."""
        return self.input_tokens + self.num_output_tokens

    @property
    def num_held_tokens(self) -> int:
        """Computed tokens whose keys and values are kept [tokens]."""
        return self.num_computed_tokens - self.num_evicted_tokens

    @property
    def num_tokens_needed(self) -> int:
        """Tokens that must be computed in all: the last output token need not be [tokens]."""
        return self.input_tokens + self.output_tokens - 1

    def __repr__(self) -> str:
        return (
            f"Request({self.request_id or self.index}, "
            f"{self.input_tokens}+{self.num_output_tokens}/{self.output_tokens}, "
            f"computed={self.num_computed_tokens}, {self.status.name.lower()})"
        )


def refusal(request: Request, max_model_len: int, allocator: KVAllocator, margin: int = 0) -> str | None:
    """Return why a request could never be served, whoever schedules it; None if it could.

    ``margin`` is the room for drafted tokens beside its own [tokens].
    """
    if request.input_tokens > max_model_len:
        return "prompt exceeds max_model_len"
    if request.input_tokens + request.output_tokens > max_model_len:
        return "prompt and answer exceed max_model_len"
    slots = request.input_tokens + request.output_tokens + margin
    if not allocator.fits(min(slots, max_model_len)):
        return "request exceeds the KV pool"
    return None


def sort_as(running: Sequence[Request], requests: list[Request]) -> None:
    """Put some of the running requests in running order, in place."""
    order = {request: position for position, request in enumerate(running)}
    requests.sort(key=order.__getitem__)
