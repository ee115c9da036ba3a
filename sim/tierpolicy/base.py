"""What a replacement policy of a KV tier promises."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import ClassVar


class TierPolicy(ABC):
    """The keys that a tier holds, and which one goes when there is no room.

    Attributes
    ----------
    name : the name used in scenario files
    capacity : keys it can hold, at least 1 [blocks]
    """

    name: ClassVar[str]

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __contains__(self, key: int) -> bool: ...

    @abstractmethod
    def touch(self, key: int) -> None:
        """Learn that a key it holds was used."""

    @abstractmethod
    def add(self, key: int) -> int | None:
        """Take in a key it does not hold; return the key that had to go for it, None if there was room."""

    def touch_all(self, keys: Iterable[int]) -> None:
        """Learn that keys were used, one after the other; those it does not hold do not count."""
        for key in keys:
            if key in self:
                self.touch(key)

    def add_all(self, keys: Iterable[int]) -> tuple[int, list[int]]:
        """Take in the keys it does not hold, one after the other; return how many, and which had to go."""
        added, gone = 0, list[int]()
        for key in keys:
            if key not in self:
                added += 1
                old = self.add(key)
                if old is not None:
                    gone.append(old)
        return added, gone
