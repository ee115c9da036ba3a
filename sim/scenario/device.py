"""The ``device`` key of a scenario: an id, a path, or a device that does not exist."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, cast

from pydantic import BeforeValidator


def _device(value: object) -> object:
    """Read a what-if device; nested keys become dotted ones (``peak_flops: {bf16: x1.2}``)."""
    if not isinstance(value, Mapping):
        return value
    flat: dict[str, object] = {}
    for key, inner in cast("Mapping[str, object]", value).items():
        if isinstance(inner, Mapping):
            flat |= {f"{key}.{leaf}": item for leaf, item in cast("Mapping[str, object]", inner).items()}
        else:
            flat[str(key)] = inner
    if not isinstance(flat.get("base"), str):
        raise ValueError("a what-if device needs base: the id or path of the device it varies")
    return flat


Device = Annotated[str | dict[str, str | int | float], BeforeValidator(_device)]
