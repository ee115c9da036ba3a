"""KV transfers beside the steps of one engine: who waits for them, and how much they slow what runs meanwhile.

Transfers start where steps start, so a step's end is known when it is composed: no events are needed. The rule
is that of `resources.SharedDevice`: everything active progresses at its max-min fair share of its own speed.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, final

from ...hwmodels.steptypes import Phase
from ..device.sharing import fair_rates

if TYPE_CHECKING:
    from ...hwmodels.tier import Direction
    from .route import Route

NANO = 1e9
_CAPACITIES: Mapping[str, float] = dict.fromkeys(("hbm", "compute", "link", "host", "h2d", "d2h"), 1.0)
_DONE_NS = 1e-6
_ROOM = 1.0 + 1e-12
_ROOM_AT_LEAST = 1.0 - 1e-9


class Moved(NamedTuple):
    """What transfers did to one step: how much longer it took [ns], bytes into the device and out of it [B]."""

    waited_ns: int = 0
    in_bytes: int = 0
    out_bytes: int = 0


NOTHING = Moved()


class _Order(NamedTuple):
    """Blocks to be moved over one channel."""

    route: Route
    direction: Direction
    blocks: int

    @property
    def phase(self) -> Phase:
        return self.route.phase(self.direction, self.blocks)


class _Part:
    """One transfer, or one phase of a step: what is left of it [ns of its own time], and its loads."""

    __slots__ = ("left", "loads")

    def __init__(self, phase: Phase, scale: float = NANO) -> None:
        self.left = phase.seconds * scale
        seconds = phase.seconds or 1.0
        self.loads = {name: demand / seconds for name, demand in phase.demands.items() if demand > 0.0}


@final
class Mover:
    """Carries KV blocks to and from the device, each channel in the order of its orders.

    ``before`` orders are what the next step needs (restores, swaps, evicted blocks whose room is taken): it waits for
    them. ``after`` orders begin when the next step has ended, and nobody waits for them (write-through).

    Approximation: a layer's KV is taken to arrive in equal parts, one a layer, and a step to compute in equal
    parts, one a layer; with ``layerwise`` part i is computed once part i has arrived, so alone a step of C
    that restores for R takes max(C, R) + min(C, R) / layers.

    Parameters
    ----------
    layers : layers that hold KV
    layerwise : restore layer by layer beside the compute; off, a step starts when its transfers are done
    """

    def __init__(self, layers: int, *, layerwise: bool = True) -> None:
        self.layers = max(layers, 1)
        self.layerwise = layerwise
        self.waited_ns = self.in_bytes = self.out_bytes = 0
        self._now = 0
        self._queues: dict[str, deque[_Part]] = {}
        self._before: dict[str, _Order] = {}
        self._after: dict[str, _Order] = {}
        self._in_bytes = self._out_bytes = 0

    def before(self, channel: str, route: Route, direction: Direction, blocks: int) -> None:
        """Order blocks that the next step waits for; what one step orders on a channel is one transfer."""
        self._order(self._before, channel, route, direction, blocks)

    def after(self, channel: str, route: Route, direction: Direction, blocks: int) -> None:
        """Order blocks whose transfer begins when the next step has ended."""
        self._order(self._after, channel, route, direction, blocks)

    def _order(
        self, orders: dict[str, _Order], channel: str, route: Route, direction: Direction, blocks: int
    ) -> None:
        known = orders.get(channel)
        orders[channel] = _Order(route, direction, blocks + (known.blocks if known else 0))
        if direction == "read":
            self._in_bytes += route.bytes_of(blocks)
        else:
            self._out_bytes += route.bytes_of(blocks)

    @property
    def ordered(self) -> bool:
        """Whether the next step waits for transfers, or starts some."""
        return bool(self._before or self._after)

    def idle_at(self, start_ns: int) -> bool:
        """Tell whether a step that starts then meets no transfer; the clock of transfers moves there."""
        if self.ordered:
            return False
        self._drain(start_ns)
        return not self._queues

    def clears(self, start_ns: int, duration_ns: int, peaks: Callable[[], Mapping[str, float]]) -> bool:
        """Run a step that orders nothing if it meets no transfer, or only such that end within it and slow nothing.

        Those behind it then meet none. False: it is not run. Parameters as in ``step``.
        """
        self._drain(start_ns)
        queues = self._queues
        if queues:
            longest = max(math.fsum(part.left for part in queue) for queue in queues.values())
            if longest > duration_ns or not self._unhindered(peaks()):
                return False
            self._pass(duration_ns)
        self._now = start_ns + duration_ns
        return not queues

    def step(
        self,
        start_ns: int,
        duration_ns: int,
        phases: Callable[[], Sequence[Phase]],
        peaks: Callable[[], Mapping[str, float]] | None = None,
    ) -> tuple[int, Moved]:
        """Run a step among the transfers; return its end [ns], and what they did to it.

        Parameters
        ----------
        start_ns : when the device is free for it [ns]; not before the end of the step before
        duration_ns : what it takes alone [ns]
        phases : what it consists of; asked for only if a transfer is under way
        peaks : the largest share of each resource that any of them holds, where that is known sooner [-]
        """
        self._drain(start_ns)
        end_ns = start_ns + duration_ns
        if self._queues and not self._before and peaks is not None and self._unhindered(peaks()):
            self._pass(duration_ns)
            self._now = end_ns
        elif self._queues or self._before:
            end_ns = start_ns + self._run(duration_ns, phases())
        if self._after:
            self._drain(end_ns)
            for channel, order in self._after.items():
                self._queues.setdefault(channel, deque()).append(_Part(order.phase))
            self._after.clear()
        moved = Moved(end_ns - start_ns - duration_ns, self._in_bytes, self._out_bytes)
        self._in_bytes = self._out_bytes = 0
        self.waited_ns += moved.waited_ns
        self.in_bytes += moved.in_bytes
        self.out_bytes += moved.out_bytes
        return end_ns, moved

    def _unhindered(self, peaks: Mapping[str, float]) -> bool:
        """Tell whether a step with such phases and all that is queued go on at full speed, whatever meets what."""
        totals: dict[str, float] = {}
        for queue in self._queues.values():
            for name in {name for part in queue for name in part.loads}:
                most = max(part.loads.get(name, 0.0) for part in queue)
                totals[name] = totals.get(name, 0.0) + most
        return all(
            load + peaks[name] <= _ROOM_AT_LEAST if name in peaks else load <= _ROOM
            for name, load in totals.items()
        )

    def _pass(self, span_ns: int) -> None:
        """Let all that is queued go on at full speed for a while."""
        for channel, queue in list(self._queues.items()):
            span = float(span_ns)
            while queue and queue[0].left - span <= _DONE_NS:
                span = max(span - queue.popleft().left, 0.0)
            if queue:
                queue[0].left -= span
            else:
                del self._queues[channel]

    def _drain(self, until_ns: int) -> None:
        """Let transfers go on by themselves until a step starts or ends."""
        if self._queues and until_ns > self._now:
            self._flow([], until_ns - self._now)
        self._now = max(self._now, until_ns)

    def _run(self, duration_ns: int, phases: Sequence[Phase]) -> int:
        """Run the step's phases beside what is queued and what it waits for; return how long it took [ns]."""
        waited, first = self._start_before()
        alone = math.fsum(phase.seconds for phase in phases)
        scale = duration_ns / alone if alone else 0.0
        steps = [_Part(phase, scale) for phase in phases if phase.seconds > 0.0]
        if waited and not self.layerwise:
            arrived, elapsed = self._flow([], waited=waited)[1:]
            end, _, more = self._flow(steps)
            end, elapsed = arrived + end, elapsed + more
        else:
            if first:
                steps.insert(0, _Part(Phase("first layer", first, {})))
            end, arrived, elapsed = self._flow(steps, waited=waited)
            if waited:
                end = max(end, arrived + duration_ns / self.layers)
        self._now += math.floor(elapsed)
        return max(round(end), duration_ns)

    def _start_before(self) -> tuple[set[_Part], float]:
        """Put what the step waits for ahead of what is queued; return it, and when its first layer is there [s]."""
        waited: set[_Part] = set()
        longest = 0.0
        for channel, order in self._before.items():
            part = _Part(order.phase)
            waited.add(part)
            longest = max(longest, order.phase.seconds)
            self._queues.setdefault(channel, deque()).appendleft(part)
        self._before.clear()
        return waited, longest / self.layers

    def _flow(
        self, steps: list[_Part], until: float = math.inf, *, waited: set[_Part] | None = None
    ) -> tuple[float, float, float]:
        """Let everything progress until the steps have ended and what is waited for is there, or ``until`` [ns].

        Returns when the last of the steps ended, when what was waited for was there, and the time that passed,
        all from now [ns].
        """
        at = step_end = arrived = 0.0
        position, queues = 0, self._queues
        left = set(waited or ())
        while position < len(steps) or left or (until < math.inf and queues and at < until):
            parts = [queue[0] for queue in queues.values()]
            if position < len(steps):
                parts.append(steps[position])
            span = _advance(parts, until - at)
            at += span
            if position < len(steps) and steps[position].left <= _DONE_NS:
                position, step_end = position + 1, at
                parts.pop()
            if all(part.left > _DONE_NS for part in parts):
                continue
            for channel in [name for name, queue in queues.items() if queue[0].left <= _DONE_NS]:
                done = queues[channel].popleft()
                if done in left:
                    left.discard(done)
                    arrived = at
                if not queues[channel]:
                    del queues[channel]
        return step_end, arrived, at


def _advance(parts: Sequence[_Part], until: float) -> float:
    """Let all go on until the first ends, or ``until``; return for how long [ns]. At full speed if nothing is short."""
    totals: dict[str, float] = {}
    for part in parts:
        for name, load in part.loads.items():
            totals[name] = totals.get(name, 0.0) + load
    span = until
    if max(totals.values(), default=0.0) <= _ROOM:
        for part in parts:
            if part.left < span:
                span = part.left
        for part in parts:
            part.left -= span
        return span
    rates = fair_rates([part.loads for part in parts], _CAPACITIES)
    span = min(min(part.left / rate for part, rate in zip(parts, rates, strict=True)), until)
    for part, rate in zip(parts, rates, strict=True):
        part.left -= rate * span
    return span
