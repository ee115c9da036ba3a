"""pydantic's findings as one line each: value, what is allowed, the nearest match, and where."""

from __future__ import annotations

import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from pydantic import ValidationError

from ...hwmodels.errors import nearest
from ..fields import ScenarioError, Section
from ..workload.arrivals.base import ArrivalProcess, find_processes

_LIMITS = {
    "greater_than": ("gt", "above"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "below"),
    "less_than_equal": ("le", "at most"),
}
_WANTED = {
    "bool_type": "true or false",
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_parsing": "a number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "text",
    "string_too_long": "a short text; allowed: up to 200 characters",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a section of keys",
    "model_type": "a section of keys",
    "model_attributes_type": "a section of keys",
}


def one_line(
    error: ValidationError, data: Mapping[str, Any], root: type[Section], where: Where
) -> ScenarioError:
    """Return the first finding as a one-line error; further ones are counted."""
    found = list(_findings(error, data, root))
    found.sort(key=lambda finding: finding.rank)  # an unknown key explains a missing one
    first = found[0]
    path = _path_in(first.loc, data)
    more = f" (and {len(found) - 1} more)" if len({_path_in(each.loc, data) for each in found}) > 1 else ""
    return ScenarioError(f"{where.of(path)}{'.'.join(path)}: {first.text}{more}")


class Where:
    """Where a key was written: a file and its line, or an option as the user wrote it."""

    def __init__(
        self, file: str = "", lines: typing.Callable[[Sequence[str]], int | None] | None = None
    ) -> None:
        self.file = file
        self.lines = lines
        self.sets: dict[tuple[str, ...], str] = {}

    def of(self, path: Sequence[str]) -> str:
        """Return the beginning of an error text about the key at ``path``."""
        for size in range(len(path), 0, -1):
            if tuple(path[:size]) in self.sets:
                return f"{self.sets[tuple(path[:size])]}: "
        inside = [text for key, text in self.sets.items() if key[: len(path)] == tuple(path)]
        if inside:
            return f"{inside[-1]}: "
        line = self.lines(path) if self.lines else None
        return f"{self.file}: line {line}: " if line else f"{self.file}: " if self.file else ""


class _Finding:
    """One fault: its location as pydantic gives it, and its text."""

    def __init__(self, loc: tuple[str | int, ...], text: str, rank: int) -> None:
        self.loc, self.text, self.rank = loc, text, rank


def _findings(error: ValidationError, data: Mapping[str, Any], root: type[Section]) -> Iterator[_Finding]:
    for fault in error.errors(include_url=False):
        loc = fault["loc"]
        sections = _sections_at(root, loc[:-1], data)
        rank = {"extra_forbidden": 0, "missing": 2}.get(fault["type"], 1)
        text = _text(
            fault["type"], fault["msg"], fault["input"], fault.get("ctx") or {}, str(loc[-1]), sections, root
        )
        yield _Finding(loc, text, rank)


def _text(
    kind: str,
    message: str,
    value: object,
    context: Mapping[str, Any],
    key: str,
    sections: Sequence[type[Section]],
    root: type[Section],
) -> str:
    """Say what is wrong with ``value``, the value of ``key``, in our words."""
    if kind == "extra_forbidden":
        return _unknown_key(key, sections, root)
    if kind == "missing":
        return "missing"
    if kind == "value_error":
        return str(context["error"])
    if kind in _LIMITS:
        limit, words = _LIMITS[kind]
        bound = context[limit]
        shown = str(bound) if isinstance(bound, int) else f"{bound:g}"
        return f"{value!r} is out of range; allowed: {words} {shown}"
    if kind == "literal_error":
        return _not_known(repr(value), str(value), re.split(r", | or ", str(context["expected"])))
    if kind == "union_tag_invalid":
        tag = str(context["tag"])
        return _not_known(f"kind {tag!r}", tag, str(context["expected_tags"]).split(", "))
    if kind == "union_tag_not_found":
        return "needs a kind, or a plain number"
    return f"{value!r} is not {_WANTED[kind]}" if kind in _WANTED else f"{value!r}: {message}"


def _not_known(shown: str, word: str, quoted: Sequence[str]) -> str:
    allowed = [choice.strip("'") for choice in quoted]
    close = nearest(word, allowed)
    return (
        f"{shown} is not known"
        + (f"; nearest: {close!r}" if close else "")
        + f"; allowed: {', '.join(allowed)}"
    )


def _unknown_key(key: str, sections: Sequence[type[Section]], root: type[Section]) -> str:
    allowed = sorted({name for section in sections for name in section.model_fields})
    close = nearest(key, allowed)
    elsewhere = _home_of(key, root)
    hint = f"; it belongs in {elsewhere}" if elsewhere else f"; nearest: {close!r}" if close else ""
    return f"unknown key {key!r}{hint}; allowed: {', '.join(allowed)}"


def _home_of(key: str, root: type[Section]) -> str | None:
    """Return the only section of a scenario that has this key, for keys that were put elsewhere."""
    homes = [
        name
        for name, info in root.model_fields.items()
        for section in _sections_in(info.annotation)
        if key in section.model_fields
    ]
    return homes[0] if len(set(homes)) == 1 else None


def _sections_at(root: type[Section], loc: Sequence[str | int], data: object) -> list[type[Section]]:
    """Return the sections that the value at ``loc`` may be; its ``kind``, where it has one, decides."""
    here: list[type[Section]] = [root]
    for part in loc:
        if isinstance(data, Mapping) and part in data:
            data = cast("Mapping[Any, Any]", data)[part]
        elif isinstance(data, list | tuple) and isinstance(part, int):
            data = cast("Sequence[Any]", data)[part]
        else:
            continue  # a tag that pydantic put in
        fields = [section.model_fields[str(part)] for section in here if str(part) in section.model_fields]
        here = [found for info in fields for found in _sections_in(info.annotation)] or here
        kind: object = cast("Mapping[str, Any]", data).get("kind") if isinstance(data, Mapping) else None
        here = [section for section in here if _tag(section) == kind] or here
    return here


def _sections_in(annotation: object) -> list[type[Section]]:
    if annotation is ArrivalProcess:
        return list(find_processes().values())
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return [annotation]
    return [found for part in typing.get_args(annotation) for found in _sections_in(part)]


def _tag(section: type[Section]) -> object:
    kind = section.model_fields.get("kind")
    return kind.default if kind else None


def _path_in(loc: Sequence[str | int], data: object) -> tuple[str, ...]:
    """Drop from a location what pydantic put in for its own use (tags of unions), keep keys and indices."""
    path: list[str] = []
    for at, part in enumerate(loc):
        if isinstance(data, Mapping) and part in data:
            data = cast("Mapping[Any, Any]", data)[part]
        elif (
            isinstance(data, list | tuple)
            and isinstance(part, int)
            and part < len(cast("Sequence[Any]", data))
        ):
            data = cast("Sequence[Any]", data)[part]
        elif at < len(loc) - 1 or not isinstance(data, Mapping):
            continue
        path.append(str(part))
    return tuple(path)
