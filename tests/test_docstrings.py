"""The examples in the docstrings say what the code does."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import membound
import pytest

EXAMPLES = [
    example
    for module in pkgutil.walk_packages(membound.__path__, "membound.")
    if module.name.startswith(("membound.hwmodels", "membound.sim", "membound.app"))
    for example in doctest.DocTestFinder(exclude_empty=True).find(importlib.import_module(module.name))
    if example.examples
]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name.removeprefix("membound."))
def test_the_example_gives_what_it_says(example: doctest.DocTest):
    said: list[str] = []
    failed = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example, out=said.append).failed
    assert failed == 0, "".join(said)
