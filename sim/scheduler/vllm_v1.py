"""The scheduler of vLLM V1: continuous batching with chunked prefill and preemption by recompute."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from .base import ScheduledBatch, Scheduler, SchedulerView, WaitingQueue
from .queues import FCFSQueue, RankedQueue, by_priority

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..engine.request import Request
    from ..kvcache.base import KVAllocator


class VllmV1(Scheduler):
    """Running requests first, then waiting ones, under one token budget a step.

    What it optimises: throughput and inter-token latency (running requests are never held up by more than one
    chunk of somebody else's prompt). What it starves: the head of the line, when the KV pool is full; under
    ``priority`` whoever has a high number.
    Source: vLLM V1 ``Scheduler.schedule`` (0.12 to 0.32).

    Parameters
    ----------
    max_num_seqs : most running requests
    max_num_batched_tokens : token budget of a step [tokens]
    max_model_len : longest sequence [tokens]
    enable_chunked_prefill : prompts may be computed in parts
    long_prefill_token_threshold : most tokens of one request in a step while others are there; 0 is no cap
        [tokens]
    scheduler_reserve_full_isl : admit only a request whose whole known sequence fits, not just its first
        chunk
    watermark : share of the pool left free at an admission while something is running
    scheduling_policy : ``fcfs`` or ``priority``
    """

    name = "vllm_v1"
    supports_speculation = True
    supports_remote_kv = True

    def __init__(
        self,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        enable_chunked_prefill: bool = True,
        long_prefill_token_threshold: int = 0,
        scheduler_reserve_full_isl: bool = True,
        watermark: float = 0.0,
        scheduling_policy: Literal["fcfs", "priority"] = "fcfs",
    ) -> None:
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_model_len = max_model_len
        self.enable_chunked_prefill = enable_chunked_prefill
        self.long_prefill_token_threshold = long_prefill_token_threshold
        self.scheduler_reserve_full_isl = scheduler_reserve_full_isl
        self.watermark = watermark
        self.rank: Callable[[Request], float] | None = (
            by_priority if scheduling_policy == "priority" else None
        )
        if self.rank is not None:
            self.everyone_served = False
        self._refused: tuple[Request, int] | None = None

    def queue(self) -> WaitingQueue:
        return FCFSQueue() if self.rank is None else RankedQueue(self.rank)

    def refuses(self, request: Request) -> str | None:
        # Preempted at its end, a request is computed again in one piece, its answer included.
        if not self.enable_chunked_prefill and request.num_tokens_needed > self.max_num_batched_tokens:
            return "sequence exceeds max_num_batched_tokens and enable_chunked_prefill is off"
        return None

    def schedule(self, view: SchedulerView, allocator: KVAllocator) -> ScheduledBatch:
        batch = ScheduledBatch()
        budget = self._continue_running(view, allocator, batch)
        if batch.preempted:
            batch.limiter = "kv_blocks"
        elif view.waiting:
            self._admit(view, allocator, batch, budget)
        return batch

    def stable_steps(self, view: SchedulerView, batch: ScheduledBatch) -> int:
        """Without prefills, admissions or preemptions the decision repeats: free blocks only get fewer.

        Without chunks, why the head waits may change: what it finds of its prefix gets less, what it asks of the
        budget more.
        """
        if not self.enable_chunked_prefill and view.waiting:
            head = view.waiting.peek()
            if head.num_preemptions or head.block_hashes:
                return 0
        return 0 if batch.tokens or batch.preempted or batch.admitted else 1 << 62

    def arrival_matters(self, view: SchedulerView, request: Request) -> bool:
        return view.waiting.peek() is request

    def caveats(self) -> tuple[str, ...]:
        return () if self.name == VllmV1.name else super().caveats()

    # -- running requests ------------------------------------------------------------------------------------

    def _continue_running(self, view: SchedulerView, allocator: KVAllocator, batch: ScheduledBatch) -> int:
        """Give running requests what they want, as far as it goes; return the budget left [tokens]."""
        budget = self._continue_together(view, allocator, batch)
        return self._continue_in_order(view, allocator, batch) if budget is None else budget

    def _continue_together(
        self, view: SchedulerView, allocator: KVAllocator, batch: ScheduledBatch
    ) -> int | None:
        """Give every running request what it wants and return the budget left; None if turns must be taken.

        First come, first served preempts from behind until the rest can have what they want: taking turns
        would stop at the same victims, because it runs out of blocks as long as the rest want more than there
        are. Whoever goes before a victim takes what is free before the victim's blocks come back.
        """
        cohort = view.decoding
        budget = self.max_num_batched_tokens - cohort.count * cohort.queries
        individuals = view.individuals
        if budget < 0 or (individuals and not self._share_out(view, batch, budget)):
            return None
        tokens = batch.tokens
        missing: dict[Request, int] = {}
        wanted = cohort.blocks_needed()
        if tokens:
            missing = self._missing(view, tokens, allocator)
            wanted += sum(missing.values())
        if wanted > allocator.free_blocks and (
            self.rank or not cohort.even or max(missing.values(), default=0) > 1
        ):
            # Who wants several blocks may run out while some are free: they keep their content for now.
            tokens.clear()
            return None
        while wanted > allocator.free_blocks:
            victim = view.running[-1]
            if victim in cohort:
                held = cohort.computed(victim) - victim.num_evicted_tokens
                wanted -= held % allocator.growth_tokens == 0
            elif tokens.pop(victim, None):
                wanted -= missing[victim]
            allocator.forget(min(wanted, allocator.free_blocks))
            batch.preempted.append(victim)
            view.preempt(victim)
        if cohort.count:
            batch.decoding = True
            allocator.grow(cohort, 1)
        for request, count in tokens.items():
            allocator.append(request, cohort.slots(request, count))
            budget -= count
        return budget

    def _share_out(self, view: SchedulerView, batch: ScheduledBatch, budget: int) -> bool:
        """Enter what each individual wants; tell whether the order of turns plays no part in it.

        A budget that runs dry is taken from those behind: nobody of the cohort must be among them.
        """
        individuals, running = view.individuals, view.running
        last = running[-1] is individuals[-1] and running[-len(individuals) :] == individuals
        for request in individuals:
            count = self._wanted(view, request)
            if count > budget:
                if not last:
                    batch.tokens.clear()
                    return False
                count = budget
            if count > 0:
                batch.tokens[request] = count
                budget -= count
        return True

    @staticmethod
    def _missing(
        view: SchedulerView, tokens: dict[Request, int], allocator: KVAllocator
    ) -> dict[Request, int]:
        return {
            request: allocator.missing(request, view.decoding.slots(request, count))
            for request, count in tokens.items()
        }

    def _continue_in_order(self, view: SchedulerView, allocator: KVAllocator, batch: ScheduledBatch) -> int:
        """Serve running requests in turn, preempting for blocks; return the budget left."""
        view.dissolve()
        budget = self.max_num_batched_tokens
        for request in self._turns(view):
            if budget <= 0:
                break
            count = 0 if request in batch.preempted else min(self._wanted(view, request), budget)
            if count <= 0:
                continue
            while not allocator.append(request, view.decoding.slots(request, count)):
                victim = self._victim(view)
                batch.preempted.append(victim)
                budget += batch.tokens.pop(victim, 0)
                view.preempt(victim)
                if victim is request:
                    return budget
            batch.tokens[request] = count
            budget -= count
        return budget

    def _turns(self, view: SchedulerView) -> list[Request]:
        """Return the running requests in the order in which they may take blocks and budget."""
        return list(view.running)

    def _victim(self, view: SchedulerView) -> Request:
        """Return the running request to preempt: the last of all."""
        rank = self.rank
        if rank is None:
            return view.running[-1]
        # Who arrives at one instant arrives in order: of true equals vLLM would take turns and never end.
        return max(view.running, key=lambda request: (rank(request), request.arrival_ns, request.index))

    def _wanted(self, view: SchedulerView, request: Request) -> int:
        """Tokens a running request would compute now: all that is known of it, within the caps [tokens]."""
        computed, pending = request.num_computed_tokens, request.num_pending_tokens
        if pending and computed + 2 - pending >= request.input_tokens + request.max_tokens:
            return 0
        if request.draft is not None and request.draft.proposes:
            return view.decoding.queries
        count = request.num_tokens + pending - computed
        return min(self._capped(view, count), self.max_model_len - 1 - computed)

    def _capped(self, view: SchedulerView, count: int) -> int:
        cap = self.long_prefill_token_threshold
        if 0 < cap < count and len(view.running) + len(view.waiting) > 1:
            return cap
        return count

    # -- waiting requests ------------------------------------------------------------------------------------

    def _may_join(self, view: SchedulerView, allocator: KVAllocator, request: Request) -> bool:
        """Tell whether a request may run as far as memory that is reserved, not held, has a say in it."""
        return True

    def _admit(self, view: SchedulerView, allocator: KVAllocator, batch: ScheduledBatch, budget: int) -> None:
        """Admit from the head of the line until the first that does not fit."""
        while view.waiting:
            if budget <= 0:
                batch.limiter = "token_budget"
                return
            if len(view.running) + len(view.fetching) >= self.max_num_seqs:
                batch.limiter = "max_num_seqs"
                return
            request = view.waiting.peek()
            if self._refused and self._refused[0] is request and allocator.free_blocks <= self._refused[1]:
                batch.limiter = "kv_blocks"
                return
            if not self._may_join(view, allocator, request):
                batch.limiter = "kv_blocks"
                return
            if request.remote_kv:
                if self._fetch(view, allocator, request):
                    continue
                batch.limiter = "kv_blocks"
                return
            cached = allocator.lookup(request)
            count = self._capped(view, request.num_tokens - cached)
            if count > budget and not self.enable_chunked_prefill:
                batch.limiter = "token_budget"
                return
            count = min(count, budget)
            must_hold = min(request.num_tokens, self.max_model_len) if self.scheduler_reserve_full_isl else 0
            # The share is of all blocks, the null block included.
            keep_free = int(self.watermark * (allocator.num_blocks + 1)) if view.running else 0
            if not allocator.admit(request, cached + count, cached, must_hold=must_hold, keep_free=keep_free):
                batch.limiter = "kv_blocks"
                # The same request gets the same answer until more blocks are free, unless others may cache
                # its prefix or a smaller chunk would do.
                if must_hold and not request.block_hashes:
                    self._refused = request, allocator.free_blocks
                return
            self._refused = None
            view.admit(request, cached)
            batch.admitted.append(request)
            batch.tokens[request] = count
            budget -= count

    def _fetch(self, view: SchedulerView, allocator: KVAllocator, request: Request) -> bool:
        """Give a request whose KV is on another replica the blocks for it, as vLLM's KV connectors do; False if none.

        It holds a seat while its KV is on the way; what is cached here is not sent.
        """
        cached = allocator.lookup(request)
        keep_free = int(self.watermark * (allocator.num_blocks + 1)) if view.running else 0
        if not allocator.admit(request, request.input_tokens, cached, keep_free=keep_free):
            return False
        view.fetch(request, cached)
        return True
