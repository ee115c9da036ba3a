"""What the README quotes is what the commands print.

``python tests/test_readme.py`` runs the commands and rewrites what README and docs/ quote of them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
BLOCK = re.compile(r"(?<=^```console\n).*?(?=^```$)", re.MULTILINE | re.DOTALL)


def quoted(block: str) -> list[tuple[str, str]]:
    """Return each command of a block, and what is quoted below it."""
    parts = re.split(r"^\$ (.*)\n", block, flags=re.MULTILINE)
    assert parts[0] == "", "a console block starts with a command"
    return list(zip(parts[1::2], parts[2::2], strict=True))


def printed(command: str, cwd: Path = ROOT, given: str | None = None) -> str:
    """Run a command in the repository's root or another folder, and return what it prints."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path}
    return subprocess.run(
        command, shell=True, cwd=cwd, env=env, input=given, capture_output=True, text=True, check=False
    ).stdout


EXAMPLES = [example for block in BLOCK.findall(README.read_text()) for example in quoted(block)]


@pytest.mark.parametrize(("command", "output"), EXAMPLES, ids=[command for command, _ in EXAMPLES])
def test_the_readme_quotes_what_the_command_prints(command: str, output: str):
    assert printed(command) == output


def test_the_readme_quotes_the_demo_of_the_makefile():
    recipe = re.search(r"^demo:.*\n\t\$\(BIN\)/(.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe is not None
    assert recipe[1] == EXAMPLES[0][0]


def test_every_file_that_the_documents_link_to_is_there():
    for document in ROOT.glob("*.md"):
        linked = [link for link in re.findall(r"\]\(([^)#]+)", document.read_text()) if "://" not in link]
        assert [link for link in linked if not (ROOT / link).exists()] == [], document.name


def test_the_python_in_the_readme_runs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    for block in re.findall(r"^```python\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL):
        exec(compile(block, str(README), "exec"), {})
    assert float(capsys.readouterr().out) > 0


def rewritten(text: str, run: Callable[[str], str] = printed) -> str:
    """Return a document with its console blocks brought up to date."""
    return BLOCK.sub(
        lambda block: "".join(f"$ {command}\n{run(command)}" for command, _ in quoted(block[0])), text
    )


if __name__ == "__main__":
    README.write_text(rewritten(README.read_text()))
    subprocess.run(
        [sys.executable, ROOT / "tests/test_docs.py"], check=True
    )  # pages and translations quote too
