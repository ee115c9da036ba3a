"""What an arrival process is, and how those in this folder are found."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, GetJsonSchemaHandler, SerializeAsAny, ValidationInfo
from pydantic_core import CoreSchema

from ....hwmodels.errors import MemboundError, unknown
from ...fields import Section

SOURCE = "arrivals"  # name of the random stream all processes draw from


class ArrivalProcess(Section):
    """When requests arrive. A new process is one file in this folder with one subclass, or ``module:Class``.

    Attributes
    ----------
    name : its name in a scenario; the field ``kind`` repeats it
    """

    name: ClassVar[str]

    def times_s(self, seed: int, count: int) -> NDArray[np.float64]:
        """Return the first ``count`` arrival times, ascending, shape (count,) [s].

        A longer run extends a shorter one: the first times never depend on ``count``.
        """
        raise NotImplementedError


@cache
def find_processes() -> Mapping[str, type[ArrivalProcess]]:
    """Return every arrival process of this folder by name."""
    package = importlib.import_module(__package__ or "")
    found: dict[str, type[ArrivalProcess]] = {}
    for info in pkgutil.iter_modules(package.__path__):
        module = importlib.import_module(f"{package.__name__}.{info.name}")
        for item in vars(module).values():
            if (
                isinstance(item, type)
                and issubclass(item, ArrivalProcess)
                and item.__module__ == module.__name__
            ):
                found.setdefault(getattr(item, "name", ""), item)
    found.pop("", None)
    return dict(sorted(found.items()))


def load_process(kind: str) -> type[ArrivalProcess]:
    """Return the process called ``kind``, or the class that ``module:Class`` names.

    Raises
    ------
    MemboundError : no such process
    """
    processes = find_processes()
    if kind in processes:
        return processes[kind]
    module, _, name = kind.partition(":")
    if not name:
        raise MemboundError(unknown("arrival process", kind, processes))
    try:
        return cast("type[ArrivalProcess]", getattr(importlib.import_module(module), name))
    except (ImportError, AttributeError) as error:
        raise MemboundError(f"arrival process {kind!r} cannot be loaded: {error}") from None


def _build(value: object, info: ValidationInfo) -> object:
    if not isinstance(value, Mapping):
        return value
    section = cast("Mapping[str, Any]", value)
    kind = section.get("kind")
    if not isinstance(kind, str):
        raise ValueError(f"needs a kind; allowed: {', '.join(find_processes())}")
    return load_process(kind).model_validate(section, context=info.context)


class _AnyKind:
    """Shows every process of the folder in the JSON schema."""

    @staticmethod
    def __get_pydantic_json_schema__(_core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        own = {
            "type": "object",
            "required": ["kind"],
            "properties": {"kind": {"type": "string", "pattern": ":"}},
        }
        known = [handler(process.__pydantic_core_schema__) for process in find_processes().values()]
        return {"anyOf": [*known, own]}


AnyArrivals = Annotated[SerializeAsAny[ArrivalProcess], BeforeValidator(_build), _AnyKind]
