"""From levers to a scenario and back: what the sidebar's values ask, as a file, as a command and as an address."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import yaml

from ...hwmodels.errors import nearest
from ...sim.scenario import Assignment, Scenario, parse_scenario, read_scenario
from ...sim.scenario.schema import leaf
from ..flags import ALL, template
from .levers import AUTO, FLAG, LOAD, WHATIF, Lever, Value, Values, levers

if TYPE_CHECKING:
    from os import PathLike


OTHER = "b_"
"""Before the names of the levers of the second scenario, in an address."""
SUGGESTED: Mapping[str, Value] = {
    "device": "h200_sxm", "kv": "fp8", "weights": "fp8", "tp": "2", "bw": 1.5, "mem": 1.5, "flops": 1.5,
    "link": 1.5, "scheduler": "sarathi", "seqs": 64, "chunked": "off", "async": "off", "prefix": "off",
    "allocator": "contiguous",
}  # fmt: skip
"""Where the levers of B stand at first: somewhere else than A's."""
BURSTY = 2.0
"""Coefficient of variation of gaps that come in bursts, where a file states none [-]."""
Z99 = 2.3263
"""The 99th percentile of the standard normal."""


@dataclass(frozen=True, slots=True)
class Base:
    """What the levers start from.

    Attributes
    ----------
    data : a scenario as plain data: that of ``membound scenario init``, or of the file that was named
    levers : those that it leaves to change, with its values as their defaults
    file : that file; empty where there is none
    """

    data: Mapping[str, Any]
    levers: tuple[Lever, ...]
    file: str = ""

    def lever(self, key: str) -> Lever:
        """Return the lever of a name."""
        return next(each for each in self.levers if each.key == key)

    def defaults(self) -> dict[str, Value]:
        """Return every lever's value without a change."""
        return {each.key: each.default for each in self.levers}

    def idle(self, values: Values) -> set[str]:
        """Return the levers that change nothing as the others stand."""
        found = {"users"} if values.get("arrivals") != "closed_loop" else {"rate"}
        if values.get("tp") == "1":
            found.add("link")
        for side in ("isl", "osl"):
            if values.get(side, 1) is None:
                found.add(f"{side}_spread")
        return found & set(values)


@lru_cache(maxsize=4)
def base_of(file: str | PathLike[str] | None = None) -> Base:
    """Return what the levers start from.

    Parameters
    ----------
    file : a scenario file; None takes the chat load of ``membound scenario init``

    Raises
    ------
    ScenarioError : one line: what is wrong with the file
    """
    if file is None:
        data = template() | {"device": "h100_sxm", "model": "llama-3.1-8b"}
        return Base(data, levers())
    data, where = read_scenario(file)
    whole = parse_scenario(data, (), where).to_dict()
    kept = [each for each in levers() if not (leaf(whole, "workload.trace") and _drawn(each))]
    return Base(data, tuple(_from_file(each, whole) for each in kept), str(file))


def _drawn(lever: Lever) -> bool:
    """Tell whether a lever belongs to a load that is drawn, and not read from a trace."""
    return lever.group == LOAD and lever.key != "seed"


def _from_file(lever: Lever, data: Mapping[str, Any]) -> Lever:
    """Return a lever whose default is what a file says."""
    value = _value_in(lever, data)
    if lever.kind == "choice":
        word = str(value)
        return replace(lever, default=word, choices=tuple(dict.fromkeys((*lever.choices, word))))
    if value is None:
        return replace(lever, default=None)
    return replace(lever, default=value, low=min(lever.low, value), high=max(lever.high, value))


def _value_in(lever: Lever, data: Mapping[str, Any]) -> Any:
    arrivals = leaf(data, "workload.arrivals") or {}
    if lever.key == "device":
        device = data["device"]
        return device["base"] if isinstance(device, dict) else device
    if lever.group == WHATIF:
        return 1.0
    if lever.key in ("arrivals", "rate", "users"):
        found = arrivals.get({"arrivals": "kind", "rate": "rate_per_s", "users": "concurrency"}[lever.key])
        return lever.default if found is None else found
    if lever.key in ("isl", "osl", "isl_spread", "osl_spread"):
        return _length_in(
            lever, leaf(data, f"workload.{'input' if lever.key[0] == 'i' else 'output'}_tokens")
        )
    value = leaf(data, lever.leaf)
    if lever.choices == FLAG:
        return {True: "on", False: "off"}.get(value, AUTO)
    if value == AUTO or value is None:
        return AUTO if lever.kind == "choice" else None
    if lever.kind == "choice":
        return value
    return value * lever.scale if lever.kind == "number" else int(value)


def _length_in(lever: Lever, lengths: Mapping[str, Any] | None) -> Any:
    """Return the median or the spread of a file's lengths; None where they are no lognormal."""
    kind, spread = (lengths or {}).get("kind"), lever.key.endswith("_spread")
    if lengths is not None and kind == "fixed":
        return 1.0 if spread else lengths["value"]
    if lengths is not None and kind == "lognormal":
        p99 = lengths["p99"] or lengths["p50"] * math.exp(Z99 * lengths["sigma"])
        return round(p99 / lengths["p50"], 2) if spread else lengths["p50"]
    return lever.default if spread else None


def moved(base: Base, values: Values) -> dict[str, Value]:
    """Return the levers that do not stand where they started."""
    idle = base.idle(values)
    return {
        each.key: values[each.key]
        for each in base.levers
        if each.key in values and values[each.key] != each.default and each.key not in idle
    }


def assignments(base: Base, values: Values) -> dict[str, Any]:
    """Return leaf -> value of everything that was moved, in the order of the levers."""
    changed = moved(base, values)
    found: dict[str, Any] = {}
    for each in base.levers:
        if each.key in changed and each.leaf:
            found[each.leaf] = _leaf_value(each, changed[each.key])
    for side, name in (("isl", "workload.input_tokens"), ("osl", "workload.output_tokens")):
        if changed.keys() & {side, f"{side}_spread"}:
            found[name] = lengths(values[side], values[f"{side}_spread"])
    if changed.keys() & {"arrivals", "rate", "users"}:
        found |= _arrivals(values, leaf(base.data, "workload.arrivals") or {})
    return found


def _leaf_value(lever: Lever, value: Value) -> Any:
    if lever.key == "tp":
        return int(str(value))
    return f"x{value:g}" if lever.group == WHATIF else lever.to_leaf(value)


def lengths(median: Value, spread: Value) -> Any:
    """Return the distribution of lengths around a median: lognormal, or all equal.

    >>> lengths(100, 1.0), lengths(100, 4.0)
    (100, {'kind': 'lognormal', 'p50': 100, 'p99': 400, 'max': 800})
    """
    middle, times = int(median or 1), float(spread or 1.0)
    p99 = round(middle * times)
    return middle if p99 <= middle else {"kind": "lognormal", "p50": middle, "p99": p99, "max": 2 * p99}


def _arrivals(values: Values, before: Mapping[str, Any]) -> dict[str, Any]:
    """Return the leaf of the arrivals, or that of their rate where their kind stays."""
    kind = str(values["arrivals"])
    closed = kind == "closed_loop"
    name, value = (
        ("concurrency", int(values["users"] or 1)) if closed else ("rate_per_s", float(values["rate"] or 1))
    )
    if before.get("kind") == kind:
        return {f"workload.arrivals.{name}": value}
    return {"workload.arrivals": {"kind": kind, name: value} | ({"cv": BURSTY} if kind == "gamma" else {})}


def scenario_of(base: Base, values: Values) -> Scenario:
    """Return the scenario that the levers make.

    Raises
    ------
    ScenarioError : one line: what is wrong, and which lever
    """
    labels = {each.leaf: each.label for each in base.levers}
    sets = [Assignment(key, value, labels.get(key, key)) for key, value in assignments(base, values).items()]
    return parse_scenario(base.data, sets)


def command_of(base: Base, values: Values, verb: str = "simulate") -> str:
    """Return the command line that asks the same: ``membound simulate --device h100_sxm …``."""
    sets = assignments(base, values)
    words = ["membound", verb, *([base.file] if base.file else [])]
    if not base.file:
        sets = {"device": base.data["device"], "model": base.data["model"]} | sets
    for key, value in sets.items():
        words += _words(base, key, value)
    return shlex.join(words)


def _words(base: Base, key: str, value: Any) -> list[str]:
    if key == "workload.arrivals.rate_per_s":
        return ["--request-rate", f"{value:g}"]
    option = next((flag.option for flag in ALL if flag.leaf == key and not flag.on_off), None)
    if option is not None and not isinstance(value, dict):
        return [option, str(value)]
    text = yaml.safe_dump(value, default_flow_style=True, width=10_000, sort_keys=False)
    return ["--set", f"{key}={text.removesuffix(chr(10)).removesuffix('...').strip()}"]


def read_address(
    base: Base, given: Mapping[str, Sequence[str]], prefix: str = ""
) -> tuple[dict[str, Value], list[str]]:
    """Return the values of an address, and a line for each that cannot be.

    Parameters
    ----------
    base : the levers
    given : name -> words, of an address
    prefix : before the name of each lever

    An impossible value leaves the lever at its default.
    """
    values, notes = base.defaults(), list[str]()
    for each in base.levers:
        words = given.get(prefix + each.key)
        if not words:
            continue
        try:
            values[each.key] = each.read(words[-1])
        except ValueError as error:
            notes.append(f"{prefix}{each.key}: {error}{_nearest(each, words[-1])}; the default is used")
    return values, notes


def moves_in(base: Base, given: Sequence[str] | None) -> list[str]:
    """Return which levers the second scenario moves, by the words of an address; without any, the bandwidth of the HBM.

    >>> moves_in(base_of(), ["kv,nothing"]), moves_in(base_of(), [])
    (['kv'], ['bw'])
    """
    names = {each.key for each in base.levers}
    return [key for key in given[-1].split(",") if key in names] if given else ["bw"]


def other_values(base: Base, values: Values, given: Mapping[str, Sequence[str]]) -> dict[str, Value]:
    """Return where the levers of the second scenario stand as a page opens.

    Parameters
    ----------
    values : where those of the first stand
    given : name -> words, of the address
    """
    said = read_address(base, given, OTHER)[0]
    moves = moves_in(base, given.get("b"))
    return dict(values) | {
        key: said[key] if given.get(OTHER + key) else SUGGESTED.get(key, base.lever(key).default)
        for key in moves
    }


def _nearest(lever: Lever, word: str) -> str:

    if lever.kind != "choice":
        return ""
    close = nearest(word, lever.choices)
    return f"; nearest: {close!r}" if close else f"; allowed: {', '.join(lever.choices[:8])}"
