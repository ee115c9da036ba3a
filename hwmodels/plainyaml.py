"""The one reader of YAML: plain data of bounded size, each key once; every fault is a YAML error with its line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import yaml

from .errors import MemboundError

BASE: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
MOST_VALUES = 200_000
"""Keys and values of a file with every alias written out [-]."""
DEEPEST = 100
"""Sections inside sections [-]."""


def plain_yaml(text: str) -> object:
    """Read one YAML document as plain data: no objects, no key twice, no alias that grows without bound.

    Raises
    ------
    yaml.YAMLError : whatever is wrong, where it is known with line and column
    """
    return cast("object", yaml.load(text, Loader=_Loader))


class _Loader(BASE):
    """YAML that refuses what a scenario, a device or an option never needs."""

    def get_single_node(self) -> Any:
        compose = cast("Callable[[], Any]", super().get_single_node)
        node = compose()
        if node is not None:
            _size(node, {}, 0)
        return node

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        build = cast("Callable[..., Any]", super().construct_object)
        try:
            return build(node, deep)
        except MemboundError:
            raise
        except (ValueError, LookupError, AttributeError, TypeError, OverflowError):
            kind = str(node.tag).rpartition(":")[2]
            raise _fault(f"{_shown(node)} cannot be read as {kind}", node) from None

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _fault("a key is a word or a number, no list and no section", key)
            if key.value in seen:
                raise _fault(f"key {key.value!r} appears twice", key)
            seen.add(key.value)
        build = cast("Callable[..., dict[Any, Any]]", super().construct_mapping)
        return build(node, deep)


def _size(node: Any, known: dict[int, int], depth: int) -> int:
    """Return how many values a node holds with its aliases written out."""
    if not isinstance(node, yaml.CollectionNode):
        return 1
    if id(node) in known:
        if not known[id(node)]:
            raise _fault("an alias of the section that it stands in", node)
        return known[id(node)]
    if depth == DEEPEST:
        raise _fault(f"nested too deep; allowed: {DEEPEST} sections inside each other", node)
    known[id(node)] = 0
    parts = cast("list[Any]", node.value)
    inner = [part for pair in parts for part in pair] if isinstance(node, yaml.MappingNode) else parts
    size = 1 + sum(_size(part, known, depth + 1) for part in inner)
    if size > MOST_VALUES:
        raise _fault(f"more than {MOST_VALUES} values with aliases written out", node)
    known[id(node)] = size
    return size


def _shown(node: Any) -> str:
    text = repr(node.value) if isinstance(node, yaml.ScalarNode) else "it"
    return text if len(text) <= 60 else f"{text[:40]}…{text[-8:]}"


def _fault(problem: str, node: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
