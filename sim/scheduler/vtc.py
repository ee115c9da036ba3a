"""Fair shares between tenants, by virtual token counters."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ...hwmodels.units import PositiveCount
from ..engine.request import Request, Status
from .base import ScheduledBatch, SchedulerView
from .reordered import Reordered, produced

if TYPE_CHECKING:
    from ..kvcache.base import KVAllocator

FOREVER = 1 << 62


class VirtualTokenCounter(Reordered):
    """vLLM's batching, the first request of the tenant that was served least next.

    A tenant's counter grows by ``input_weight`` for each prompt token when a request is first admitted, and by
    ``output_weight`` for each token computed of its answers. A tenant that comes back is lifted to the least of those
    who wait (or to the last who waited), so that nobody saves up service. Tenants are told apart by ``tenant``, or by
    session where requests name no tenant; requests that name neither are one tenant.

    What it optimises: fairness: of two tenants that both wait, neither gets ahead by more than what one batch holds.
    What it starves: nobody; a tenant that asks for more than its share waits for it. Short of KV blocks, who was
    admitted last is preempted, as in vLLM; computing its prompt again is not charged.
    Source: Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024, algorithm 2.

    Parameters
    ----------
    input_weight, output_weight : what a prompt token and an answer's token count; the paper takes 1 and 2
    vllm : limits of the batch, as of ``vllm_v1``
    """

    name = "vtc"

    def __init__(
        self, *, input_weight: PositiveCount = 1, output_weight: PositiveCount = 2, **vllm: Any
    ) -> None:
        super().__init__(**vllm)
        self.weights = input_weight, output_weight
        self.line = TenantLines(*self.weights)

    def queue(self) -> TenantLines:
        self.line = TenantLines(*self.weights)  # an engine that failed begins anew
        return self.line

    def arrival_matters(self, view: SchedulerView, request: Request) -> bool:
        return self.line.length(tenant_of(request)) == 1

    def stable_steps(self, view: SchedulerView, batch: ScheduledBatch) -> int:
        """Count the steps until another tenant's turn comes, where it matters whose turn it is."""
        steps = super().stable_steps(view, batch)
        if not steps or not view.waiting or batch.limiter == "max_num_seqs":
            return steps
        running: dict[int, int] = {}
        for request in view.decoding.members:
            running[tenant_of(request)] = running.get(tenant_of(request), 0) + 1
        return self.line.steps_to_turn(running)

    def _admit(self, view: SchedulerView, allocator: KVAllocator, batch: ScheduledBatch, budget: int) -> None:
        self.line.charge(view)
        super()._admit(view, allocator, batch, budget)


def tenant_of(request: Request) -> int:
    """Return whose request it is: its tenant, its session, or -1."""
    if request.tenant is not None:
        return request.tenant
    return -1 if request.session is None else -2 - request.session


class TenantLines:
    """One line for each tenant, first come, first served, and what each tenant has been served.

    Parameters
    ----------
    input_weight, output_weight : what a prompt token and an answer's token count
    """

    def __init__(self, input_weight: int, output_weight: int) -> None:
        self.input_weight = input_weight
        self.output_weight = output_weight
        self.counters: dict[int, int] = {}
        self._lines: dict[int, deque[Request]] = {}
        self._charged: dict[Request, int] = {}
        self._back: list[int] = []
        self._last_left: int | None = None
        self._count = 0

    # -- waiting ---------------------------------------------------------------------------------------------

    def push(self, request: Request) -> None:
        """Enter a request at the end of its tenant's line; a tenant who is back is lifted at the next decision."""
        tenant = tenant_of(request)
        if tenant not in self._lines:
            self._back.append(tenant)
        self._lines.setdefault(tenant, deque()).append(request)
        self._count += 1

    def requeue(self, request: Request) -> None:
        """Enter a preempted request at the front of its tenant's line."""
        self._charge_one(request, request.num_output_tokens)
        self._lines.setdefault(tenant_of(request), deque()).appendleft(request)
        self._count += 1

    def peek(self) -> Request:
        """Return the first request of the tenant whose turn it is."""
        return self._lines[self._next()][0]

    def pop(self) -> Request:
        """Take the first request of the tenant whose turn it is, and charge its prompt."""
        tenant = self._next()
        request = self._lines[tenant][0]
        self._take(tenant, request)
        if request not in self._charged:
            self._charged[request] = 0
            self.counters[tenant] += self.input_weight * request.input_tokens
        return request

    def remove(self, request: Request) -> None:
        """Take out a request wherever it stands."""
        self._take(tenant_of(request), request)

    def length(self, tenant: int) -> int:
        """Count a tenant's waiting requests."""
        return len(self._lines.get(tenant, ()))

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Request]:
        return (request for line in self._lines.values() for request in line)

    def _take(self, tenant: int, request: Request) -> None:
        line = self._lines[tenant]
        line.remove(request)
        self._count -= 1
        if not line:
            del self._lines[tenant]
            self._last_left = tenant

    def _next(self) -> int:
        return min(self._lines, key=self._place)

    def _place(self, tenant: int) -> tuple[int, int, int]:
        first = self._lines[tenant][0]
        return self.counters[tenant], first.arrival_ns, first.index

    # -- counting --------------------------------------------------------------------------------------------

    def charge(self, view: SchedulerView) -> None:
        """Charge what has been computed since the last time, and lift the tenants who are back."""
        for request in list(self._charged):
            if request.status is Status.COMPLETED:
                self._charge_one(request, request.output_tokens)
                del self._charged[request]
            elif request.status is Status.RUNNING:
                self._charge_one(request, min(produced(request, view), request.output_tokens))
        while self._back:
            self._lift(self._back.pop(0))

    def _charge_one(self, request: Request, tokens: int) -> None:
        more = tokens - self._charged[request]
        if more > 0:
            self._charged[request] = tokens
            self.counters[tenant_of(request)] += self.output_weight * more

    def _lift(self, tenant: int) -> None:
        floor = min(
            (
                self.counters[other]
                for other in self._lines
                if other in self.counters and other not in self._back
            ),
            default=self.counters.get(self._last_left, 0) if self._last_left is not None else 0,
        )
        self.counters[tenant] = max(self.counters.get(tenant, 0), floor)

    def steps_to_turn(self, running: dict[int, int]) -> int:
        """Count the steps after which the same tenant is still the next, if so many of each decode [steps]."""
        first = self._next()
        steps = FOREVER
        for other in self._lines:
            gains = self.output_weight * (running.get(first, 0) - running.get(other, 0))
            if other == first or gains <= 0:
                continue
            ahead, behind = self._place(first), self._place(other)
            whole, rest = divmod(behind[0] - ahead[0], gains)
            ties = rest == 0 and behind[1:] < ahead[1:]
            steps = min(steps, whole - 1 if ties else whole)
        return steps
