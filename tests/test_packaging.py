"""What is installed: every package and every data file, under one import name."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tomllib
import zipfile
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
NOT_INSTALLED = {"tests", "benchmarks", "examples", "build", "dist"}
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
SETUPTOOLS: dict[str, Any] = PROJECT["tool"]["setuptools"]


def package_folders() -> list[Path]:
    """Return every folder of the package, relative to the root; the root itself is ``membound``."""
    found: list[Path] = []
    for folder, below, files in os.walk(ROOT):
        here = Path(folder).relative_to(ROOT)
        if here == Path("."):
            below[:] = [name for name in below if name not in NOT_INSTALLED and name[0] not in "._"]
        if "__init__.py" in files:
            found.append(here)
        else:
            below.clear()
    return sorted(found)


def source_files() -> list[Path]:
    return [path for folder in package_folders() for path in sorted((ROOT / folder).glob("*.py"))]


def name_of(folder: Path) -> str:
    return ".".join(("membound", *folder.parts))


def test_every_folder_with_code_is_a_listed_package_and_no_other():
    assert SETUPTOOLS["packages"] == [name_of(folder) for folder in package_folders()]


def test_every_data_file_beside_the_code_is_installed():
    given = SETUPTOOLS["package-data"]
    known = [str(folder / each) for folder in package_folders() for each in given.get(name_of(folder), ())]
    tops = {folder.parts[0] for folder in package_folders() if folder.parts}
    files = [path.relative_to(ROOT) for top in tops for path in (ROOT / top).rglob("*") if path.is_file()]
    data = [path for path in files if path.suffix != ".py" and "__pycache__" not in path.parts]
    assert [str(path) for path in data if not any(fnmatch(str(path), pattern) for pattern in known)] == []
    assert {Path("hwmodels/prices.yaml"), Path("hwmodels/power.yaml")} <= set(data)
    assert [pattern for pattern in known if not list(ROOT.glob(pattern))] == []


def test_no_folder_of_ours_is_a_top_level_module_outside_the_repository(tmp_path: Path):
    names = sorted({folder.parts[0] for folder in package_folders() if folder.parts} | NOT_INSTALLED)
    script = f"from importlib.util import find_spec; print([n for n in {names!r} if find_spec(n)])"
    found = subprocess.run(
        [sys.executable, "-I", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert found.stdout == "[]\n"


def test_the_wheel_holds_the_package_its_data_and_nothing_else(tmp_path: Path):
    setuptools = pytest.importorskip("setuptools")
    if int(setuptools.__version__.split(".")[0]) < 77:
        pytest.skip("needs setuptools 77 or newer, to build without fetching it")
    tree = tmp_path / "tree"
    for folder in package_folders():
        ignored = shutil.ignore_patterns("__pycache__", ".*", "*.egg-info", *NOT_INSTALLED)
        if folder.parts and len(folder.parts) == 1:
            shutil.copytree(ROOT / folder, tree / folder, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE", "__init__.py", "py.typed"):
        shutil.copy(ROOT / name, tree / name)
    build = ["pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps", "-w", str(tmp_path), str(tree)]
    subprocess.run([sys.executable, "-m", *build], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    sources = {f"membound/{path.relative_to(tree)}" for path in tree.rglob("*") if path.is_file()}
    built = {name for name in sources if "/build/" in name or ".egg-info/" in name}
    project = {f"membound/{name}" for name in ("pyproject.toml", "README.md", "LICENSE")}
    assert held == sources - built - project


def test_the_half_of_the_files_is_under_200_lines_and_none_over_600():
    lines = {path.relative_to(ROOT): len(path.read_text().splitlines()) for path in source_files()}
    assert {str(path): count for path, count in lines.items() if count > 600} == {}
    assert statistics.median(lines.values()) < 200
