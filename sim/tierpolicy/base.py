"""What a replacement policy of a KV tier promises."""

from __future__ import annotations

from typing import Protocol


class TierPolicy(Protocol):
    """The keys that a tier holds, and which one goes when there is no room.

    Attributes
    ----------
    name : the name used in scenario files
    capacity : keys it can hold, at least 1 [blocks]
    """

    name: str
    capacity: int

    def __init__(self, capacity: int) -> None: ...

    def __len__(self) -> int: ...

    def __contains__(self, key: int) -> bool: ...

    def touch(self, key: int) -> None:
        """Learn that a key it holds was used."""
        ...

    def add(self, key: int) -> int | None:
        """Take in a key it does not hold; return the key that had to go for it, None if there was room."""
        ...
