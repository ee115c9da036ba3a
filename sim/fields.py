"""Field types that every scenario section is made of: frozen, unknown keys refused, human numbers accepted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from ..hwmodels.errors import MemboundError
from ..hwmodels.units import parse_bytes, parse_count, parse_factor


class ScenarioError(MemboundError):
    """A scenario that cannot be read or run: one line with value, what is allowed, nearest match and where."""


class WorkloadError(ScenarioError):
    """A trace or a workload that cannot be read: names file, line and column."""


class Section(BaseModel):
    """Base of every section of a scenario file."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


Auto = Literal["auto"]
AUTO: Auto = "auto"


def _or_word(parse: Callable[[object], Any], word: str = AUTO) -> BeforeValidator:
    return BeforeValidator(lambda value: value if value == word else parse(value))  # pyright: ignore[reportUnknownArgumentType, reportUnknownLambdaType]


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


def _one_of(*choices: dict[str, Any], hint: str) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": list(choices), "description": hint})


_NUMBER: dict[str, Any] = {"type": "number", "minimum": 0}
_TEXT: dict[str, Any] = {"type": "string"}

Flag = Annotated[bool, Field(strict=True)]
AutoFlag = Annotated[
    Annotated[bool, Field(strict=True)] | Auto, WithJsonSchema({"enum": [True, False, "auto"]})
]
AutoCount = Annotated[
    int | Auto, _or_word(_positive), _one_of(_NUMBER, _TEXT, hint="a count above 0, or auto")
]
AutoBytes = Annotated[
    int | Auto, _or_word(parse_bytes), _one_of(_NUMBER, _TEXT, hint="bytes (80GiB), or auto")
]
Share = Annotated[float, BeforeValidator(_share), _one_of(_NUMBER, _TEXT, hint="a share: 0.9, 90%")]
AutoShare = Annotated[float | Auto, _or_word(_share), _one_of(_NUMBER, _TEXT, hint="a share, or auto")]
