"""Finds schedulers, allocators and other policies by name: one file, one class, no registration."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, get_type_hints

from ..hwmodels.errors import MemboundError, unknown

HELPERS = frozenset({"base", "pages", "predictor", "queues", "reordered", "ring", "runs", "slabs", "tree"})
WORDS = {"kvcache": "allocator", "tierpolicy": "tier policy"}


class PolicyError(MemboundError):
    """A policy that is not there, or that does not look like one."""


def policy_names(package: str) -> list[str]:
    """Return the names of the policies in a sub-package of ``sim`` (``scheduler``, ``kvcache``)."""
    return list(_names(package))


@cache
def _names(package: str) -> tuple[str, ...]:
    folder = importlib.import_module(f".{package}", __package__)
    names = sorted(name for _, name, _ in pkgutil.iter_modules(folder.__path__) if name not in HELPERS)
    return tuple(names)


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
    return _class_in(package, name, key)


@cache
def _class_in(package: str, name: str, key: str) -> type[Any]:
    module = importlib.import_module(f".{package}.{name}", __package__)
    for _, found in inspect.getmembers(module, inspect.isclass):
        if found.__module__ == module.__name__ and getattr(found, "name", None) == name:
            return found
    raise PolicyError(f"{key}: sim/{package}/{name}.py has no class whose name is {name!r}")


def make_policy(policy: type[Any], offered: Mapping[str, Any], options: Mapping[str, Any], key: str) -> Any:
    """Make a policy from those of the offered settings that its constructor names, and its own options.

    Parameters
    ----------
    policy : the class
    offered : what a scenario says to every policy; a policy takes what it names
    options : what a scenario says to this policy alone, checked by the constructor's annotations
    key : scenario key of the options, for errors

    Raises
    ------
    PolicyError
        An option that the policy does not have, or a value that its annotation refuses.

    Examples
    --------
    >>> policy = find_policy("scheduler", "priority", "scheduler.name")
    >>> limits = {"max_num_seqs": 8, "max_num_batched_tokens": 512, "max_model_len": 4096, "seed": 0}
    >>> make_policy(policy, limits, {"aging_s": "500ms"}, "scheduler.options").aging_ns
    500000000
    """
    named, takes_all = _parameters(policy)
    checked = {
        name: _checked(policy, named, takes_all, offered, name, value, key) for name, value in options.items()
    }
    given = {name: value for name, value in offered.items() if takes_all or name in named}
    return policy(**given, **checked)


def parameters(policy: type[Any]) -> frozenset[str] | None:
    """Return the names that a policy's constructor takes; None: any."""
    named, takes_all = _parameters(policy)
    return None if takes_all else frozenset(named)


def _parameters(policy: type[Any]) -> tuple[dict[str, Any], bool]:
    """Return name to annotation of a constructor's parameters, those handed on to a base class included.

    The flag tells whether anything else is taken as well.
    """
    named: dict[str, Any] = {}
    for made_by in policy.__mro__:
        constructor = vars(made_by).get("__init__")
        if constructor is None:
            continue
        if made_by is object:
            return named, bool(named)
        found = inspect.signature(constructor).parameters
        for name, parameter in list(found.items())[1:]:
            if parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD):
                named.setdefault(name, _annotation(constructor, name))
        if all(parameter.kind is not parameter.VAR_KEYWORD for parameter in found.values()):
            return named, False
    return named, False


def _annotation(constructor: Callable[..., Any], name: str) -> Any:
    try:
        return get_type_hints(constructor, include_extras=True).get(name, Any)
    except NameError:  # a name that only type checkers see
        return Any


def _checked(
    policy: type[Any], named: Mapping[str, Any], takes_all: bool, offered: Mapping[str, Any], name: str, value: Any,
    key: str,
) -> Any:  # fmt: skip
    from pydantic import TypeAdapter, ValidationError

    if name in offered:
        raise PolicyError(f"{key}.{name}: allowed only as {key.rpartition('.')[0]}.{name}")
    own = [each for each in named if each not in offered]
    if name not in own and not takes_all:
        what = f"option of {getattr(policy, 'name', policy.__name__)}"
        raise PolicyError(
            f"{key}: {unknown(what, name, own)}" if own else f"{key}.{name}: {what[10:]} has no options"
        )
    try:
        return TypeAdapter(named.get(name, Any)).validate_python(value)
    except ValidationError as error:
        said = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise PolicyError(f"{key}.{name}: {said} (given: {value!r})") from None


def _from_outside(name: str, key: str) -> type[Any]:
    module_name, _, class_name = name.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError) as error:
        raise PolicyError(f"{key}: {name!r} cannot be loaded ({error}); allowed: module:Class") from None
    if not inspect.isclass(found):
        raise PolicyError(f"{key}: {name!r} is no class; allowed: module:Class")
    return found
