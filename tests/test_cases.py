"""docs/cases.md names every published case, and a test that exists for each or the reason why there is none."""

from __future__ import annotations

import ast
import json
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CASES = ROOT.parent / "shared" / "cases" / "cases.jsonl"


def rows() -> dict[str, tuple[list[str], str]]:
    """Return, for each case of the page, its tests and the remark."""
    found: dict[str, tuple[list[str], str]] = {}
    for line in (ROOT / "docs" / "cases.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) != 4 or cells[0] == "case" or set(cells[0]) == {"-"}:
            continue
        assert cells[0] not in found, f"{cells[0]} is there twice"
        found[cells[0]] = [each.strip("`") for each in cells[2].split("<br>") if each], cells[3]
    return found


@cache
def functions(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


def test_every_case_of_the_page_names_tests_that_exist_or_the_reason_why_there_is_none() -> None:
    assert len(rows()) == 70
    for case, (tests, remark) in rows().items():
        assert tests or remark, case
        for named in tests:
            path, _, name = named.partition("::")
            assert name in functions(path), f"{case}: {named}"


@pytest.mark.skipif(not CASES.is_file(), reason="no public cases beside the repository")
def test_no_published_case_is_missing_from_the_page() -> None:
    lines = CASES.read_text(encoding="utf-8").splitlines()
    assert {json.loads(line)["id"] for line in lines} == set(rows())
