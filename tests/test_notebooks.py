"""The notebooks among the examples run from top to bottom, and every cell that ends in a value shows something."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("altair", reason="draws charts")
pytest.importorskip("pandas", reason="makes frames")
NOTEBOOKS = sorted((Path(__file__).resolve().parents[1] / "examples/notebooks").glob("*.py"))


def cells(path: Path) -> list[str]:
    """Return the code of a notebook's cells; text cells are comments throughout."""
    parts = path.read_text().split("# %%")[1:]
    return [part.partition("\n")[2] for part in parts if not part.startswith(" [markdown]")]


def run(code: str, names: dict[str, Any]) -> Any:
    """Run a cell and return the value of its last line; None where that is no expression."""
    tree = ast.parse(code)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names) if last is not None else None


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for code in cells(path):
        shown = run(code, names)
        if ast.parse(code).body and isinstance(ast.parse(code).body[-1], ast.Expr):
            assert shown is not None, code
            if hasattr(shown, "_repr_html_"):
                assert len(shown._repr_html_()) > 80, code


def test_there_are_three():
    assert len(NOTEBOOKS) == 3
