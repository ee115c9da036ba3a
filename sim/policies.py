"""Finds schedulers, allocators and other policies by name: one file, one class, no registration."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from typing import Any

from ..hwmodels.errors import MemboundError, unknown

HELPERS = frozenset({"base", "queues", "slabs"})
WORDS = {"kvcache": "allocator"}


class PolicyError(MemboundError):
    """A policy that is not there, or that does not look like one."""


def policy_names(package: str) -> list[str]:
    """Return the names of the policies in a sub-package of ``sim`` (``scheduler``, ``kvcache``)."""
    folder = importlib.import_module(f".{package}", __package__)
    return sorted(name for _, name, _ in pkgutil.iter_modules(folder.__path__) if name not in HELPERS)


def find_policy(package: str, name: str, key: str) -> type[Any]:
    """Return the class called ``name`` in a sub-package of ``sim``, or ``module:Class`` from anywhere.

    Parameters
    ----------
    package : sub-package of ``sim``; the file is called as the policy is
    key : scenario key that named it, for errors

    Raises
    ------
    PolicyError
        There is no such policy.

    Examples
    --------
    >>> find_policy("scheduler", "vllm_v1", "scheduler.name").name
    'vllm_v1'
    """
    if ":" in name:
        return _from_outside(name, key)
    names = policy_names(package)
    if name not in names:
        raise PolicyError(f"{key}: {unknown(WORDS.get(package, package), name, names)}; or module:Class")
    module = importlib.import_module(f".{package}.{name}", __package__)
    for _, found in inspect.getmembers(module, inspect.isclass):
        if found.__module__ == module.__name__ and getattr(found, "name", None) == name:
            return found
    raise PolicyError(f"{key}: sim/{package}/{name}.py has no class whose name is {name!r}")


def _from_outside(name: str, key: str) -> type[Any]:
    module_name, _, class_name = name.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError) as error:
        raise PolicyError(f"{key}: {name!r} cannot be loaded ({error}); allowed: module:Class") from None
    if not inspect.isclass(found):
        raise PolicyError(f"{key}: {name!r} is no class; allowed: module:Class")
    return found
