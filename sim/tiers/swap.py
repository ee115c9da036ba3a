"""Where the KV of preempted requests waits when preemption swaps instead of recomputing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..engine.request import Request
    from .mover import Mover
    from .route import Route


class SwapSpace:
    """Host memory for preempted requests: their blocks go there and come back as they were.

    What does not fit is recomputed. (vLLM V0 aborted the engine there.) The step that takes the freed room
    waits until it is copied out; the step that goes on with the request waits for it to come back.
    Source: vLLM V0 ``preemption_mode="swap"``, ``swap_space``.

    Parameters
    ----------
    capacity : room [blocks]
    route : how blocks get there
    mover : who carries them
    """

    def __init__(self, capacity: int, route: Route, mover: Mover) -> None:
        self.capacity = capacity
        self.route = route
        self.mover = mover
        self.used = self.peak = self.refused = self.out_blocks = self.in_blocks = 0
        self._held: dict[Request, tuple[int, int]] = {}

    def __contains__(self, request: Request) -> bool:
        return request in self._held

    def tokens(self, request: Request) -> int:
        """Computed tokens that are kept of a request [tokens]."""
        return self._held[request][1]

    def put(self, request: Request, blocks: int, tokens: int) -> bool:
        """Take the blocks of a preempted request; False if there is no room for them."""
        if not blocks or self.used + blocks > self.capacity:
            self.refused += blocks > 0
            return False
        self._held[request] = blocks, tokens
        self.used += blocks
        self.peak = max(self.peak, self.used)
        self.out_blocks += blocks
        self.mover.before("swap out", self.route, "write", blocks)
        return True

    def take_back(self, request: Request, blocks: int) -> None:
        """Bring ``blocks`` of what is kept of a request back to the device, and keep nothing."""
        self.drop(request)
        if blocks > 0:
            self.in_blocks += blocks
            self.mover.before("swap in", self.route, "read", blocks)

    def drop(self, request: Request) -> None:
        """Forget a request, if anything is kept of it."""
        self.used -= self._held.pop(request, (0, 0))[0]

    def figures(self) -> dict[str, Any]:
        """Return what a run's summary says of swapping."""
        size = self.route.bytes_of
        return {
            "capacity_bytes": size(self.capacity),
            "out_bytes": size(self.out_blocks),
            "in_bytes": size(self.in_blocks),
            "peak_usage": self.peak / self.capacity if self.capacity else 0.0,
            "recomputed_for_lack_of_room": self.refused,
        }
