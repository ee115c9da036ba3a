"""What a metric can be: a number, or unknown with the reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Unknown:
    """A figure that is not known or whose part is not built, and why."""

    reason: str


Figure = float | int | str | bool | Unknown
Figures = dict[str, Figure]

NO_COMPLETED = "no request completed"
NS_PER_S = 1_000_000_000
