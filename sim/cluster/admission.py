"""Admission control of a cluster: which requests are turned away before they reach a replica."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from ..scenario.cluster import Admission

FULL = "cluster.admission: too many requests outstanding"
TOO_FAST = "cluster.admission: token bucket empty"


@final
class Gate:
    """Decides about each request when it arrives, by how many are outstanding and how many came lately.

    The bucket holds up to ``burst`` tokens, and is full at first; one is taken for each request that is let in.

    Parameters
    ----------
    asked : the rules
    """

    def __init__(self, asked: Admission) -> None:
        self.most = asked.max_outstanding
        self.bucket = asked.token_bucket
        self._tokens = float(self.bucket.burst) if self.bucket else 0.0
        self._since_ns = 0

    def refuses(self, now_ns: int, outstanding: int) -> str | None:
        """Return why a request that arrives now is turned away, None if it is let in."""
        if self.most is not None and outstanding >= self.most:
            return FULL
        if self.bucket is None:
            return None
        gained = (now_ns - self._since_ns) / 1e9 * self.bucket.rate_per_s
        self._tokens = min(self._tokens + gained, float(self.bucket.burst))
        self._since_ns = now_ns
        if self._tokens < 1.0 - _ROUNDING:
            return TOO_FAST
        self._tokens -= 1.0
        return None


_ROUNDING = 1e-9
