"""Setting one leaf of a scenario that is still plain data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from ..fields import ScenarioError


def assign(data: dict[str, Any], parts: Sequence[str], value: object, where: str) -> None:
    """Set one leaf of plain data in place, making the sections on the way.

    Raises
    ------
    ScenarioError : the path goes through a value that is no section
    """
    here: Any = data
    for depth, part in enumerate(parts[:-1]):
        inner = _child(here, part)
        if inner is None:
            inner = {}
            here[part] = inner
        elif part == "device" and isinstance(inner, str):
            inner = {"base": inner}  # --set device.hbm_bandwidth=x1.5 on a catalogue device
            here[part] = inner
        elif not isinstance(inner, dict | list):
            raise ScenarioError(f"{where}: {'.'.join(parts[: depth + 1])} is {inner!r}, it has no keys")
        here = cast("Any", inner)
    if isinstance(here, list):
        index = _index(cast("list[Any]", here), parts[-1], where)
        here[index] = value
    else:
        here[parts[-1]] = value


def _child(here: Any, part: str) -> Any:
    if isinstance(here, list):
        items = cast("list[Any]", here)
        return items[_index(items, part, "--set")]
    return here.get(part)


def _index(items: list[Any], part: str, where: str) -> int:
    if not part.isdigit() or int(part) >= len(items):
        raise ScenarioError(f"{where}: {part!r} is no index into a list of {len(items)}")
    return int(part)
