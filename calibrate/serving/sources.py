"""Caveats of the sources of served runs, and which engine profile stands for which version."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, cast

import yaml

from ...hwmodels.engine import list_engines, load_engine
from .table import Row, RowError

_FILE = Path(__file__).parent / "sources.yaml"


@dataclass(frozen=True, slots=True)
class Source:
    """What is known of who measured a row.

    Attributes
    ----------
    id : its name
    client_overhead_s : the client's own time on TTFT and E2E; None takes the engine profile's [s]
    taken_up : whether arrivals are stamped as the engine takes requests up
    constant_is : arrival law behind what the table calls constant
    prompt_factor : true prompt lengths over stated ones [-]
    length_range : shortest length over the stated one, uniform between; None: all as stated [-]
    jitter_s : mean of what a closed loop's users take longer, each for itself, to send the next request [s]
    unstated : engine -> profile, where a row states no version
    server : engine -> scheduler settings, where a row states none
    quantized_kv : engine -> pattern of models whose KV cache is in fp8 where the weights are in 8 or 4 bit
    top_p_top_k : pattern of models whose requests were sampled with top-p or top-k; empty: none
    unstated_spread : engine -> ``dense`` or ``experts`` -> ``ttft``, ``tpot``: standard deviation of log(simulated /
        measured) for what rows do not state [-]
    ignore : columns that do not hold what their name says
    says : what was applied, one line each
    """

    id: str = ""
    client_overhead_s: float | None = None
    taken_up: bool = False
    constant_is: str = "constant"
    prompt_factor: float = 1.0
    length_range: float | None = None
    jitter_s: float = 0.0
    unstated: Mapping[str, str] = field(default_factory=dict[str, str])
    server: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    quantized_kv: Mapping[str, str] = field(default_factory=dict[str, str])
    top_p_top_k: str = ""
    unstated_spread: Mapping[str, Mapping[str, Mapping[str, float]]] = field(
        default_factory=dict[str, Mapping[str, Mapping[str, float]]]
    )
    ignore: frozenset[str] = frozenset()
    says: tuple[str, ...] = ()

    def sampling(self, row: Row) -> str:
        """Return how a row's tokens were chosen, as a scenario names it."""
        pattern = self.top_p_top_k
        return "top_p_top_k" if pattern and re.search(pattern, row.text("model")) else "greedy"

    def spread(self, row: Row, *, experts: bool) -> Mapping[str, float]:
        """Return the ``unstated_spread`` of a row by latency; empty where none is known."""
        kinds = self.unstated_spread.get(row.text("engine"), {})
        return kinds.get("experts" if experts else "dense", {})

    def kv_dtype(self, row: Row, weights: str) -> str:
        """Return the KV cache's dtype for weights in a format, as a scenario names it."""
        pattern = self.quantized_kv.get(row.text("engine"))
        narrow = weights.lower().startswith(("fp8", "fp4", "nvfp4", "int4"))
        return "fp8" if narrow and pattern and re.search(pattern, row.text("model")) else "auto"


@cache
def _read() -> list[tuple[dict[str, str], Source]]:
    data = cast("dict[str, Any]", yaml.safe_load(_FILE.read_text(encoding="utf-8")))
    return [
        (
            cast("dict[str, str]", entry["match"]),
            Source(
                id=entry["id"],
                client_overhead_s=entry["client_overhead_ms"] / 1e3
                if "client_overhead_ms" in entry
                else None,
                taken_up=entry.get("taken_up", False),
                constant_is=entry.get("constant_is", "constant"),
                prompt_factor=float(entry.get("prompt_factor", 1.0)),
                length_range=entry.get("length_range"),
                jitter_s=entry.get("jitter_ms", 0.0) / 1e3,
                unstated=entry.get("unstated", {}),
                server=entry.get("server", {}),
                quantized_kv=entry.get("quantized_kv", {}),
                top_p_top_k=entry.get("top_p_top_k", ""),
                unstated_spread=entry.get("unstated_spread", {}),
                ignore=frozenset(entry.get("ignore", ())),
                says=tuple(entry.get("says", ())),
            ),
        )
        for entry in data["sources"]
    ]


def source_of(row: Row) -> Source:
    """Return the first source whose patterns a row matches; one that says nothing if there is none."""
    for patterns, source in _read():
        if all(re.search(pattern, row.text(column)) for column, pattern in patterns.items()):
            return source
    return Source()


def engine_of(row: Row, source: Source | None = None) -> tuple[str, str]:
    """Return the profile nearest to a row's engine version, and what was taken instead of it ("" if it is the same).

    Raises
    ------
    RowError : an engine without a profile
    """
    name, stated = row.text("engine"), row.text("engine_version")
    asked = _plain(name)
    profiles = [load_engine(each) for each in list_engines()]
    found = [profile for profile in profiles if _plain(profile.engine) == asked]
    if not found:
        named = {each.engine for each in profiles if any(_plain(alias) == asked for alias in each.aliases)}
        found = [profile for profile in profiles if profile.engine in named]
    if not found:
        raise RowError(f"engine {name!r} has no profile; there are {', '.join(list_engines())}")
    wanted = _version(stated)
    if wanted is None:
        newest = max(found, key=lambda profile: _version(profile.version) or (0, 0))
        chosen = (source or Source()).unstated.get(name, newest.id)
        return chosen, f"engine version {stated or 'not stated'}: {chosen} taken"
    nearest = min(found, key=lambda profile: _distance(_version(profile.version), wanted))
    same = _version(nearest.version) == wanted
    return nearest.id, "" if same else f"engine version {stated}: {nearest.id} is the nearest profile"


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _version(text: str) -> tuple[int, int] | None:
    found = re.match(r"\s*v?(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else None


def _distance(profile: tuple[int, int] | None, wanted: tuple[int, int]) -> tuple[int, bool]:
    """Return how far a profile is from a version; of two equally far the older is nearer."""
    major, minor = profile or (0, 0)
    steps = abs(major - wanted[0]) * 1000 + abs(minor - wanted[1])
    return steps, (major, minor) > wanted
