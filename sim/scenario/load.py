"""Reading a scenario: YAML, then ``--set`` assignments, then the schema; every fault is one line."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import yaml
from pydantic import ValidationError

from ...hwmodels.errors import nearest
from ...hwmodels.plainyaml import BASE, plain_yaml
from ..fields import ScenarioError
from .assign import assign
from .errors import Where, one_line
from .schema import Scenario, leaf, move_paths

TRACES = (".csv", ".jsonl", ".gz", ".parquet")
COMMANDS = {"scenario": "simulate", "study": "sweep", "plan": "plan"}
"""What a file is -> the command that takes it first of all."""
LOOKS = {
    "study": "{base: FILE, over: {device: [h100_sxm, l40s]}}",
    "plan": "{base: FILE, load: {rate_per_s: 40}, candidates: {device: [h100_sxm, l40s]}}",
}
_DRAWN = ("arrivals", "input_tokens", "output_tokens", "requests", "duration_s")


@dataclass(frozen=True, slots=True)
class Assignment:
    """One leaf to set.

    Attributes
    ----------
    key : dotted path of the leaf
    value : its value, as YAML would give it
    shown : how the user wrote it, for errors (``--max-num-seqs 64``)
    """

    key: str
    value: object
    shown: str

    @classmethod
    def of(cls, text: str) -> Assignment:
        """Read ``a.b=value``, the argument of ``--set``.

        Raises
        ------
        ScenarioError : there is no ``=``, or the value is not YAML
        """
        key, value = _split(text)
        return cls(key, value, f"--set {text}")


def load_scenario(path: str | os.PathLike[str], sets: Sequence[str | Assignment] = ()) -> Scenario:
    """Read a scenario file.

    Parameters
    ----------
    path : the YAML file; paths in it are relative to its folder
    sets : assignments ``a.b=value`` that replace leaves; their paths are relative to the working folder.
        Setting ``workload.trace.…`` in a scenario that draws its load replaces the drawn load

    Raises
    ------
    ScenarioError : one line: what is wrong, what is allowed, the nearest match, and where
    """
    data, where = read_scenario(path)
    return parse_scenario(data, sets, where)


def read_scenario(path: str | os.PathLike[str]) -> tuple[dict[str, Any], Where]:
    """Read a scenario file as plain data, its paths relative to the working folder, and where its keys are.

    Raises
    ------
    ScenarioError : the file is not there, cannot be read, or is no YAML mapping
    """
    data, where = read_sections(path, "scenario", "device, model, …")
    folder = os.path.dirname(where.file)

    def from_here(given: str) -> str:
        return os.path.normpath(os.path.join(folder, os.path.expanduser(given)))

    move_paths(data, from_here)
    return data, where


def read_sections(path: str | os.PathLike[str], what: str, keys: str) -> tuple[dict[str, Any], Where]:
    """Read a YAML file of named sections as plain data, and where its keys are.

    Parameters
    ----------
    path : the file
    what : what it should be, for errors (``scenario``, ``study``)
    keys : the first keys such a file has, for errors

    Raises
    ------
    ScenarioError : the file is not there, cannot be read, or is no YAML mapping
    """
    file = os.fspath(path)
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ScenarioError(_not_found(Path(path), what)) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ScenarioError(f"{what} {file!r} cannot be read: {error}") from None
    data = _read_yaml(text, file, what, keys)
    found = _kind(data)
    if found is not None and found != what:
        said = f"{file}: this is a {found}, for membound {COMMANDS[found]}"
        raise ScenarioError(f"{said}; {_instead(what, data, file)}")
    return data, Where(file, lambda key: _line_of(text, key))


def _kind(data: Mapping[str, Any]) -> str | None:
    """Return what a file is by the keys that only it has, or None where that cannot be told."""
    if data.keys() & {"device", "model"}:
        return None if "base" in data else "scenario"
    if "base" in data:
        return (
            "plan"
            if data.keys() & {"candidates", "load"}
            else "study"
            if data.keys() & {"over", "points"}
            else None
        )
    return None


def _instead(what: str, data: Mapping[str, Any], file: str) -> str:
    """Say how the file that was meant looks."""
    if what == "scenario":
        return f"its base, {data['base']!r}, is a scenario"
    return f"a {what} names it, such as {LOOKS[what].replace('FILE', os.path.basename(file))}"


def scenario_from(sets: Sequence[str | Assignment]) -> Scenario:
    """Make a scenario from assignments alone: ``["device=h100_sxm", "model=llama-3.1-8b", …]``."""
    return parse_scenario({}, sets)


def parse_scenario(
    data: Mapping[str, Any], sets: Sequence[str | Assignment] = (), where: Where | str = ""
) -> Scenario:
    """Make a scenario from plain data and assignments, later ones over earlier ones.

    Raises
    ------
    ScenarioError : one line: what is wrong, what is allowed, the nearest match, and where
    """
    where = Where(where) if isinstance(where, str) else where
    changed = cast("dict[str, Any]", _copy(data))
    for given in sets:
        assignment = Assignment.of(given) if isinstance(given, str) else given
        parts = _parts(assignment.key)
        where.sets[tuple(parts)] = assignment.shown
        assign(changed, parts, assignment.value, assignment.shown)
    _trace_replaces_draws(changed, data, where)
    try:
        return Scenario.model_validate(changed)
    except ValidationError as error:
        raise one_line(error, changed, Scenario, where) from None


def _split(assignment: str) -> tuple[str, Any]:
    key, equals, text = assignment.partition("=")
    if not equals or not key.strip():
        raise ScenarioError(f"--set {assignment!r} is not KEY=VALUE, such as scheduler.max_num_seqs=64")
    try:
        return key.strip(), plain_yaml(text)
    except yaml.YAMLError:
        raise ScenarioError(f"--set {assignment}: {text!r} is not a YAML value") from None


def _parts(key: str) -> list[str]:
    """Split a dotted key; what follows ``device`` is one key, since device fields have dots of their own."""
    parts = [part.strip().replace("-", "_") for part in key.split(".")]
    if any(not part for part in parts):
        raise ScenarioError(f"--set {key!r} has an empty part; write scheduler.max_num_seqs=64")
    return parts if parts[0] != "device" or len(parts) < 3 else ["device", ".".join(parts[1:])]


def _trace_replaces_draws(changed: dict[str, Any], given: Mapping[str, Any], where: Where) -> None:
    """Drop the drawn load of a file where a ``--set`` brings a trace, unless it is set as well."""
    workload = changed.get("workload")
    if not isinstance(workload, dict) or leaf(given, "workload.trace"):
        return
    if any(path[:2] == ("workload", "trace") for path in where.sets):
        for key in _DRAWN:
            if not any(path[:2] == ("workload", key) for path in where.sets):
                cast("dict[str, Any]", workload).pop(key, None)


def _read_yaml(text: str, file: str, what: str, keys: str) -> dict[str, Any]:
    try:
        data: object = plain_yaml(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ScenarioError(f"{file}: {at}not YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise ScenarioError(f"{file}: not YAML: {str(error).splitlines()[0]}") from None
    if data is None:
        raise ScenarioError(f"{file}: empty {what}; needs {keys}")
    if not isinstance(data, dict):
        trace = f"; a trace is given beside one: --trace {file}" if file.endswith(TRACES) else ""
        raise ScenarioError(
            f"{file}: a {what} is a section of keys ({keys}), not {type(data).__name__}{trace}"
        )
    return cast("dict[str, Any]", data)


def _line_of(text: str, path: Sequence[str]) -> int | None:
    """Return the line on which the deepest key of ``path`` that is there is written."""
    node: Any = cast("Any", yaml).compose(text, Loader=BASE)
    line: int | None = None
    for part in path:
        if isinstance(node, yaml.MappingNode):
            pairs = cast("list[tuple[Any, Any]]", node.value)
            found = next(((key, value) for key, value in pairs if key.value == part), None)
            if found is None:
                break
            line, node = found[0].start_mark.line + 1, found[1]
        elif isinstance(node, yaml.SequenceNode) and part.isdigit() and int(part) < len(node.value):
            node = node.value[int(part)]
            line = node.start_mark.line + 1
        else:
            break
    return line


def _copy(data: object) -> object:
    if isinstance(data, Mapping):
        return {key: _copy(value) for key, value in cast("Mapping[Any, Any]", data).items()}
    return [_copy(item) for item in cast("Sequence[Any]", data)] if isinstance(data, list | tuple) else data


def _not_found(path: Path, what: str) -> str:
    names = [item.name for item in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
    close = nearest(path.name, names)
    if close:
        return f"{what} {str(path)!r} not found; nearest: {str(path.parent / close)!r}"
    start = "; membound scenario init > mine.yaml writes one to start from" if what == "scenario" else ""
    return f"{what} {str(path)!r} not found{start}"
