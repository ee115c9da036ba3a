"""The sidebar: the scenario, kept across pages and in the address."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import streamlit as st

from ...hwmodels.errors import nearest
from ...sim.scenario import Scenario
from .asked import OTHER, Base, command_of, moved, read_address, scenario_of
from .levers import GROUPS, SERVES, Lever, Value

NOTES = "_notes"
OF_PAGES = (
    "b", "draws", "tornado", "statistic", "load", "gpus", "tps", "formats", "sure", "page", "embed", "embed_options",
)  # fmt: skip
"""Names in an address that are no levers: what single pages remember."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What the sidebar asks.

    Attributes
    ----------
    base : what the levers started from
    values : where they stand
    scenario : what they make
    """

    base: Base
    values: Mapping[str, Value]
    scenario: Scenario


def note_of_address(base: Base) -> None:
    """Say once what of the address cannot be; to be called before any lever is shown."""
    given = {name: st.query_params.get_all(name) for name in st.query_params}
    notes = [*read_address(base, given)[1], *read_address(base, given, OTHER)[1], *_unknown(base, given)]
    if notes:
        st.session_state[NOTES] = notes


def notes() -> None:
    """Show what of the address could not be."""
    found: list[str] = st.session_state.get(NOTES, [])
    if not found:
        return
    with st.container(border=True):
        st.markdown("**Some of this address could not be used:**")
        for note in found:
            st.text(note)
        st.button("Dismiss", key="dismiss notes", on_click=lambda: st.session_state.pop(NOTES, None))


def sidebar(base: Base) -> Asked:
    """Show every lever and return what they ask.

    Raises
    ------
    ScenarioError : one line: which values do not go together
    """
    before = {each.key: st.session_state.get(each.key, each.default) for each in base.levers}
    idle = base.idle(before)
    values: dict[str, Value] = {}
    for group in GROUPS:
        members = [each for each in base.levers if each.group == group]
        if not members:
            continue
        count = sum(1 for each in members if each.key in moved(base, before))
        label = f"{group} · {count} changed" if count else group
        with st.expander(label, expanded=group == SERVES, key=f"group {group}"):
            for each in members:
                values[each.key] = control(each, disabled=each.key in idle)
    return Asked(base, values, scenario_of(base, values))


def control(lever: Lever, *, prefix: str = "", default: Any = None, disabled: bool = False) -> Value:
    """Show one lever and return where it stands.

    Parameters
    ----------
    prefix : before its name in the address
    default : where it stands without a change; None: at the lever's own default
    disabled : it changes nothing as the others stand
    """
    start = lever.default if default is None else default
    shared: dict[str, Any] = {
        "key": prefix + lever.key, "help": lever.help, "disabled": disabled, "bind": "query-params",
    }  # fmt: skip
    if lever.kind == "choice":
        return st.selectbox(lever.label, lever.choices, lever.choices.index(str(start)), **shared)
    kind = int if lever.kind == "whole" else float
    return st.number_input(
        lever.label,
        min_value=kind(lever.low),
        max_value=kind(lever.high),
        value=None if start is None else kind(start),  # type: ignore[arg-type]
        step=kind(lever.step),
        format="%d" if kind is int else "%.6g",
        placeholder="auto",
        **shared,
    )


def share(asked: Asked) -> None:
    """Show the scenario as a file and as a command, each to be copied; drawn by the browser once it is opened."""
    text = asked.scenario.to_yaml()
    with st.popover("Command and YAML", width="stretch"):
        command, file = st.tabs(["Command", "YAML"])
    with command:
        st.code(command_of(asked.base, asked.values), language="bash", wrap_lines=True)
    with file:
        st.code(text, language="yaml", height=220)
        st.download_button("Download scenario.yaml", text, "scenario.yaml", "text/yaml", on_click="ignore")
    st.caption("The address of this page holds the scenario too: send it, and others see the same.")


def _unknown(base: Base, given: Mapping[str, Any]) -> list[str]:
    names = [each.key for each in base.levers]
    known = {*names, *(OTHER + name for name in names), *OF_PAGES}
    found: list[str] = []
    for name in given:
        if name not in known:
            close = nearest(name, names)
            found.append(f"{name}: no such lever{f'; nearest: {close!r}' if close else ''}; it is left out")
    return found
