"""Find an entry of a folder by id, alias or path: the look-up that devices, engines and models share.

An entry is one file, its id is the file's name. A hit by id reads that file alone; only an alias makes us
scan the others, and then for their ``aliases:`` line alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from typing import cast

import yaml

from .errors import CatalogError, unknown
from .plainyaml import plain_yaml

_ALIASES = re.compile(r"^aliases:.*(?:\n[ \t-].*)*", re.MULTILINE)


def key(name: str) -> str:
    """Reduce a name to what counts when two are compared: lower case, no hyphens, underscores or blanks.

    >>> key("H100-SXM_80 GB")
    'h100sxm80gb'
    """
    return re.sub(r"[-_\s]+", "", name.lower())


def ids(folder: Path, suffix: str = ".yaml") -> list[str]:
    """List the ids of a catalogue folder, sorted."""
    return sorted(path.name.removesuffix(suffix) for path in folder.glob(f"*{suffix}"))


def find(
    kind: str,
    name: str | os.PathLike[str],
    folder: Path,
    *,
    suffix: str = ".yaml",
    aliases: Callable[[Path], Iterable[str]] | None = None,
    relative_to: Path | None = None,
    where: str | None = None,
) -> Path:
    """Return the file of the entry that ``name`` means.

    Parameters
    ----------
    kind : what is looked for, for the error text (``device``)
    name : id, alias or Hugging Face name in any case and with any hyphens, or a path to a file
    folder, suffix : where the catalogue's files are and what their names end in
    aliases : reads the other names of one file; default: its YAML ``aliases:`` key
    relative_to : folder that relative paths start from; default: the working folder
    where : where the name was written, for the error text

    Raises
    ------
    CatalogError : no such entry (with the nearest match), or a path that is not there
    """
    text = os.fspath(name)
    exact = folder / f"{text}{suffix}"
    if re.fullmatch(r"[\w.-]+", text) and os.path.isfile(exact):
        return exact
    wanted = key(text)
    known = _known_names(folder, suffix, aliases or yaml_aliases)
    if wanted in known:
        return known[wanted]
    path = (relative_to or Path()) / os.path.expanduser(text)
    if os.path.isfile(path):  # False too of a name that no file can have
        return path
    if path.suffix in (".yaml", ".yml", ".json"):
        raise CatalogError(f"{kind} file {text!r}{f' in {where}' if where else ''} does not exist")
    raise CatalogError(unknown(kind, text, ids(folder, suffix), where))


@lru_cache(maxsize=16)
def _known_names(folder: Path, suffix: str, aliases: Callable[[Path], Iterable[str]]) -> dict[str, Path]:
    known: dict[str, Path] = {}
    for entry in ids(folder, suffix):
        path = folder / f"{entry}{suffix}"
        for name in aliases(path):
            other = known.setdefault(key(name), path)
            if other != path:
                raise CatalogError(f"alias {name!r} names both {other.name} and {path.name} in {folder}")
    return known | {key(entry): folder / f"{entry}{suffix}" for entry in ids(folder, suffix)}


def yaml_aliases(path: Path) -> list[str]:
    """Read the ``aliases:`` of one YAML file without parsing the rest of it."""
    found = _ALIASES.search(path.read_text(encoding="utf-8"))
    if found is None:
        return []
    section = cast("dict[str, list[object] | None]", plain_yaml(found[0]))
    return [str(alias) for alias in section["aliases"] or []]


def read_yaml(path: Path, kind: str) -> dict[str, object]:
    """Read one YAML file that holds a mapping.

    Raises
    ------
    CatalogError : unreadable, not YAML (with line and column), or not a mapping
    """
    try:
        data = plain_yaml(path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise CatalogError(f"{kind} file {str(path)!r} cannot be read: {error}") from error
    except yaml.YAMLError as error:
        mark = cast("yaml.Mark | None", getattr(error, "problem_mark", None))
        at = f" at line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or "syntax error"
        raise CatalogError(f"{kind} file {str(path)!r} is not YAML{at}: {problem}") from error
    if not isinstance(data, dict):
        raise CatalogError(f"{kind} file {str(path)!r} holds no mapping of keys to values")
    return cast("dict[str, object]", data)
