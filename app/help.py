"""``--help`` in plain text: options under headings, names never cut, no colour to read past."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

GENERAL = "Options"


class GroupedCommand(TyperCommand):
    """A command whose options stand under the headings they name (``rich_help_panel``)."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, then each group of options in order of first appearance, the general ones last."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            heading = _heading(parameter)
            record = parameter.get_help_record(ctx)
            if record is not None:
                groups.setdefault(heading, []).append(record)
        general = groups.pop(GENERAL, [])
        for heading, records in [*groups.items(), (GENERAL, general)]:
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)


def _heading(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return "Arguments"
    return getattr(parameter, "rich_help_panel", None) or GENERAL
