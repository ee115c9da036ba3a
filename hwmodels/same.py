"""Things compared by being the same one, so that what was worked out of them can be looked up."""

from __future__ import annotations

from typing import Generic, TypeVar, cast

Thing = TypeVar("Thing")


class Same(Generic[Thing]):
    """One thing that never changes, equal to itself alone; it is kept alive as long as anybody knows of it.

    >>> profile = ["never changed"]
    >>> Same(profile) == Same(profile), Same(profile) == Same(["never changed"])
    (True, False)
    """

    __slots__ = ("it",)

    def __init__(self, it: Thing) -> None:
        self.it = it

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and cast("Same[object]", other).it is self.it

    def __hash__(self) -> int:
        return id(self.it)
