"""The one family of errors a user sees: one line that says what, what is allowed, the nearest, where."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class MemboundError(ValueError):
    """Base of every error that bad input can raise; its text is one line that says how to mend the input."""


class CatalogError(MemboundError):
    """A device, engine or model that is not in the catalogue, or whose file is malformed."""


class ModelConfigError(MemboundError):
    """A Hugging Face ``config.json`` that cannot be read as a model."""


class CapacityError(MemboundError):
    """A model that does not fit the device, or a KV pool that cannot hold what is asked of it."""


class UnitError(MemboundError):
    """A human number (``8k``, ``80GiB``, ``250ms``) that cannot be read, or that has the wrong dimension."""


def nearest(word: str, choices: Iterable[str]) -> str | None:
    """Return the choice that looks most like ``word``, or None when none is close.

    >>> nearest("h10_sxm", ["h100_sxm", "l40s"])
    'h100_sxm'
    """
    pool = list(choices)
    by_lower = {choice.lower(): choice for choice in pool}
    found = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.5)
    return by_lower[found[0]] if found else None


def unknown(what: str, value: str, choices: Iterable[str], where: str | None = None, shown: int = 12) -> str:
    """Compose the one-line text for a name that is not one of ``choices``.

    >>> unknown("device", "h10_sxm", ["h100_sxm", "l40s"], "scenario.yaml")
    "unknown device 'h10_sxm' in scenario.yaml; nearest: 'h100_sxm'; allowed: h100_sxm, l40s"
    """
    pool = sorted(choices)
    listed = ", ".join(pool[:shown]) + (f", … ({len(pool)} in all)" if len(pool) > shown else "")
    match = nearest(value, pool)
    return (
        f"unknown {what} {value!r}"
        + (f" in {where}" if where else "")
        + (f"; nearest: {match!r}" if match else "")
        + f"; allowed: {listed}"
    )
