"""Field types that scenario sections are made of: frozen, unknown keys refused, human numbers accepted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, WithJsonSchema

from ..hwmodels.errors import MemboundError
from ..hwmodels.units import parse_bytes, parse_count, parse_factor


class ScenarioError(MemboundError):
    """A scenario that cannot be read or run: one line with value, what is allowed, nearest, where."""

    def __init__(self, text: str) -> None:
        super().__init__(" ".join(text.splitlines()))  # a file's own keys and values may hold line breaks


class WorkloadError(ScenarioError):
    """A trace or a workload that cannot be read: names file, line and column."""


class Section(BaseModel):
    """Base of every section of a scenario file."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


Auto = Literal["auto"]
AUTO: Auto = "auto"


def _or_auto(parse: Callable[[object], object]) -> BeforeValidator:
    def read(value: object) -> object:
        return value if value == AUTO else parse(value)

    return BeforeValidator(read)


def _positive(value: object) -> int:
    number = parse_count(value)
    if number <= 0:
        raise ValueError(f"{value!r} is not above 0")
    return number


def _share(value: object) -> float:
    number = parse_factor(value)
    if not 0.0 <= number <= 1.0:
        raise ValueError(f"{value!r} is not a share; allowed: 0 to 1, or 0% to 100%")
    return number


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is not true or false")
    return value


def _schema(hint: str, *kinds: str) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": [{"type": kind} for kind in kinds], "description": hint})


Flag = Annotated[bool, BeforeValidator(_flag)]
AutoFlag = Annotated[bool | Auto, _or_auto(_flag), WithJsonSchema({"enum": [True, False, AUTO]})]
AutoCount = Annotated[
    int | Auto, _or_auto(_positive), _schema("a count above 0, or auto", "integer", "string")
]
AutoCountOr0 = Annotated[int | Auto, _or_auto(parse_count), _schema("a count, or auto", "integer", "string")]
AutoBytes = Annotated[int | Auto, _or_auto(parse_bytes), _schema("80GiB, or auto", "integer", "string")]
Share = Annotated[float, BeforeValidator(_share), _schema("a share: 0.9, 90%", "number", "string")]
AutoShare = Annotated[float | Auto, _or_auto(_share), _schema("a share, or auto", "number", "string")]
