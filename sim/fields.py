"""Field types that scenario sections are made of: frozen, unknown keys refused, human numbers accepted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, WithJsonSchema

from ..hwmodels.errors import MemboundError
from ..hwmodels.units import MOST, parse_count, parse_factor


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
MOST_GPUS = 4096
"""Most GPUs of one machine, or of one way of sharing a model out: seven times the largest NVLink domain [-]."""


def _or_auto(parse: Callable[[object], object]) -> BeforeValidator:
    def read(value: object) -> object:
        return value if value == AUTO else parse(value)

    return BeforeValidator(read)


def _positive(value: object, most: int = MOST) -> int:
    number = _count(value, most)
    if number <= 0:
        raise ValueError(f"{value!r} is not above 0")
    return number


def _group(value: object) -> int:
    return _positive(value, MOST_GPUS)


def _count(value: object, most: int = MOST) -> int:
    number = parse_count(value)
    if number > most:
        raise ValueError(f"{value!r} is out of range; allowed: at most {most}")
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
AutoGroup = Annotated[int | Auto, _or_auto(_group), _schema("a count above 0, or auto", "integer", "string")]
AutoCountOr0 = Annotated[int | Auto, _or_auto(_count), _schema("a count, or auto", "integer", "string")]
Share = Annotated[float, BeforeValidator(_share), _schema("a share: 0.9, 90%", "number", "string")]
AutoShare = Annotated[float | Auto, _or_auto(_share), _schema("a share, or auto", "number", "string")]
