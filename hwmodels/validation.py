"""Turn pydantic's report on a catalogue file into one line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from .errors import CatalogError, nearest

_Model = TypeVar("_Model", bound=BaseModel)


def validate(model: type[_Model], data: Mapping[str, object], kind: str, where: str) -> _Model:
    """Build ``model`` from ``data``.

    Raises
    ------
    CatalogError : the first fault, as one line: which key, what is wrong, nearest key where one is unknown
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False)
        unknown = (fault for fault in faults if fault["type"] == "extra_forbidden")
        first = next(unknown, faults[0])  # a key that is misspelled explains one that is missing
        at = ".".join(str(part) for part in first["loc"])
        text = first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            *parents, key = first["loc"]
            missing = [
                str(each["loc"][-1])
                for each in faults
                if [*each["loc"][:-1]] == parents and each["type"] == "missing"
            ]
            close = nearest(str(key), missing if parents else model.model_fields)
            hint = f"; nearest: {close!r}" if close else f"; missing: {missing[0]!r}" if missing else ""
            text = f"unknown key{hint}"
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        raise CatalogError(f"{kind} file {where!r}: {at}: {text}{more}") from None
