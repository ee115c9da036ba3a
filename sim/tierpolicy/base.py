"""What a replacement policy of a KV tier promises."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from ..kvcache.runs import Piece


class TierPolicy(ABC):
    """The blocks that a tier holds, by their keys, and which ones go when there is no room.

    Blocks come as neighbours in one prompt, whose keys are chained (an equal key means an equal prefix). Of those used
    or taken in together the last is first in turn, so that the beginning of a prompt is kept longest.

    Attributes
    ----------
    name : the name used in scenario files
    capacity : blocks it can hold, at least 1 [blocks]
    """

    name: ClassVar[str]

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def reach(self, keys: Sequence[int], start: int, stop: int) -> int:
        """Return up to which block, at most ``stop``, a prompt is held from ``start`` on without a gap."""

    @abstractmethod
    def touch(self, keys: Sequence[int], start: int, stop: int) -> None:
        """Learn that blocks of a prompt were used; those it does not hold do not count."""

    @abstractmethod
    def add(self, keys: Sequence[int], start: int, stop: int) -> tuple[int, list[Piece]]:
        """Take in the blocks it does not hold; return how many, and which had to go, each piece from its end."""


class KeyPolicy(TierPolicy):
    """A policy that looks at every block by itself."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._places: dict[int, tuple[Sequence[int], int]] = {}
        """Of every key it holds: a prompt that has it, and which of its blocks it is."""

    @abstractmethod
    def __contains__(self, key: int) -> bool: ...

    @abstractmethod
    def touch_key(self, key: int) -> None:
        """Learn that a key it holds was used."""

    @abstractmethod
    def add_key(self, key: int) -> int | None:
        """Take in a key it does not hold; return the key that had to go for it, None if there was room."""

    def reach(self, keys: Sequence[int], start: int, stop: int) -> int:
        """Return up to which block a prompt is held without a gap."""
        return next((index for index in range(start, stop) if keys[index] not in self), max(start, stop))

    def touch(self, keys: Sequence[int], start: int, stop: int) -> None:
        """Learn that blocks were used, one after the other."""
        for index in range(stop - 1, start - 1, -1):
            if keys[index] in self:
                self.touch_key(keys[index])

    def add(self, keys: Sequence[int], start: int, stop: int) -> tuple[int, list[Piece]]:
        """Take in blocks, one after the other."""
        added = 0
        gone: list[Piece] = []
        for index in range(stop - 1, start - 1, -1):
            if keys[index] not in self:
                added += 1
                old = self.add_key(keys[index])
                self._places[keys[index]] = (keys, index)
                if old is not None:
                    prompt, block = self._places.pop(old)
                    gone.append((prompt, block, block + 1))
        return added, gone
