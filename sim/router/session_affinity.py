"""Session affinity: a conversation stays where it began."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .base import ClusterView, Router, least

if TYPE_CHECKING:
    from ..engine.request import Request


class SessionAffinity(Router):
    """Send every turn of a session to the replica of its first turn, which goes where fewest are outstanding.

    What it optimises: prefix caches: a turn finds the KV of the turns before it. What it starves: balance,
    where few sessions make most of the load.
    Source: sticky sessions (``--routing-logic session`` of the vLLM production stack's router).
    """

    name = "session_affinity"

    def __init__(self) -> None:
        self._last = -1
        self._home: dict[int, int] = {}

    def route(self, request: Request, view: ClusterView) -> int:
        session = request.session
        home = None if session is None else self._home.get(session)
        if home is not None and home in view.ready:
            return home
        self._last = least(view.ready, view.outstanding, self._last)
        if session is not None:
            self._home[session] = self._last
        return self._last

    def gone(self, replica: int) -> None:
        self._home = {session: home for session, home in self._home.items() if home != replica}
