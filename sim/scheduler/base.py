"""What a scheduler sees, what it decides, and the part that all iteration-level schedulers share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

if TYPE_CHECKING:
    from ..engine.decoding import DecodeCohort
    from ..engine.request import Request
    from ..kvcache.base import KVAllocator

Limiter = Literal["kv_blocks", "max_num_seqs", "token_budget", "arrivals"]


class WaitingQueue(Protocol):
    """The order in which waiting requests are looked at."""

    def push(self, request: Request, /) -> None:
        """Enter a request that has just arrived."""
        ...

    def requeue(self, request: Request, /) -> None:
        """Enter a request again after its preemption."""
        ...

    def peek(self) -> Request:
        """Return the request to look at first."""
        ...

    def pop(self) -> Request:
        """Take the request to look at first."""
        ...

    def remove(self, request: Request, /) -> None:
        """Take out a request wherever it stands."""
        ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Request]: ...


class SchedulerView(Protocol):
    """The engine as a scheduler sees it; the verbs are carried out by the engine.

    Attributes
    ----------
    running : admitted requests in the order of their admission
    waiting : requests not admitted yet
    decoding : the running requests that get one token in every step, as one object
    individuals : the other running requests that may want tokens, in the order of their admission
    fetching : requests that have got their blocks and run once their KV has come from another replica
    now_ns : the time of this decision [ns]
    """

    running: list[Request]
    waiting: WaitingQueue
    decoding: DecodeCohort
    individuals: list[Request]
    fetching: dict[Request, None]

    @property
    def now_ns(self) -> int: ...

    def dissolve(self) -> None:
        """Turn every member of ``decoding`` into an individual, to be looked at in running order."""
        ...

    def preempt(self, request: Request) -> None:
        """Stop a running request: its blocks are free at once, it waits again and starts over."""
        ...

    def admit(self, request: Request, cached: int) -> None:
        """Run a waiting request that has got its blocks, ``cached`` of its tokens computed."""
        ...

    def fetch(self, request: Request, cached: int) -> None:
        """Have the KV of the first waiting request sent here: it has got its blocks, ``cached`` tokens of them full."""
        ...

    def shed(self, request: Request, reason: str) -> None:
        """Reject the first waiting request, which has never run."""
        ...


class ScheduledBatch:
    """One step as decided: who computes how many tokens.

    Attributes
    ----------
    decoding : every member of the view's decode cohort computes one token
    tokens : tokens to compute for each other request, in scheduling order
    preempted, admitted : requests preempted and admitted while deciding
    limiter : what kept the batch from being larger
    """

    __slots__ = ("admitted", "decoding", "limiter", "preempted", "tokens")

    def __init__(self) -> None:
        self.decoding = False
        self.tokens: dict[Request, int] = {}
        self.preempted: list[Request] = []
        self.admitted: list[Request] = []
        self.limiter: Limiter = "arrivals"


class Scheduler(ABC):
    """Decides, step by step, which requests compute how many tokens.

    A policy is one file with one subclass. ``schedule`` alone asks the allocator for blocks. Whatever it
    decides must depend on nothing but the view, the allocator and the arguments of its constructor.

    Attributes
    ----------
    name : the name used in scenario files
    holds_batch : finished requests keep their slot and blocks until the whole batch is done
    supports_async : can decide a step while the one before it runs
    preempts_for : what a preemption can be for
    supports_speculation : gives a decoding request its drafted tokens, from the budget and with room for them
    supports_remote_kv : gives a request whose prompt another replica has computed its blocks and has its KV sent
    everyone_served : no stream of later requests, however long, keeps an earlier one from being served
    """

    name: ClassVar[str]
    holds_batch: ClassVar[bool] = False
    supports_async: ClassVar[bool] = True
    preempts_for: ClassVar[frozenset[Limiter]] = frozenset({"kv_blocks"})
    supports_speculation: ClassVar[bool] = False
    supports_remote_kv: ClassVar[bool] = False
    everyone_served: bool = True

    @abstractmethod
    def queue(self) -> WaitingQueue:
        """Return an empty waiting queue in this policy's order."""

    @abstractmethod
    def schedule(self, view: SchedulerView, allocator: KVAllocator) -> ScheduledBatch:
        """Decide the next step."""

    def caveats(self) -> tuple[str, ...]:
        """Return what a user should know of runs under this policy, one line each."""
        return (f"scheduler {self.name}: as published, not held against the steps of a real engine",)

    def refuses(self, request: Request) -> str | None:
        """Return why this request could never be scheduled, or None."""
        return None

    def stable_steps(self, view: SchedulerView, batch: ScheduledBatch) -> int:
        """Return for how many more steps the decision stays the same if nothing arrives or finishes [steps].

        The allocator answers for itself; the default is 0, which is always right.
        """
        return 0

    def next_change_ns(self, view: SchedulerView) -> int | None:
        """Return when time alone changes the decision just made; None if it never does [ns]."""
        return None

    def arrival_matters(self, view: SchedulerView, request: Request) -> bool:
        """Tell whether ``request``, just arrived, could change the next decision; True is safe."""
        return True
