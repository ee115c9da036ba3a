"""The documentation says what the commands print, names all that is there, and builds without a warning.

``python tests/test_docs.py [PAGE ...]`` runs the commands of the pages and rewrites what they quote of them.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import membound as mb
import pytest
import yaml
from membound.app.cli import main
from membound.hwmodels.tier import list_tiers
from membound.sim.policies import policy_names
from membound.sim.workload.arrivals.base import find_processes
from membound.sim.workload.trace.formats import format_names

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
TRANSLATED = {"README.ko.md": "README.md", "docs/tutorial.ko.md": "docs/tutorial.md"}
RUN = [page for page in PAGES if str(page.relative_to(ROOT)) not in TRANSLATED]
FENCED = re.compile(r"^```(console|python|yaml|json|csv)(?: title=\"([^\"\n]*)\")?\n(.*?)^```$", re.M | re.S)
FEW = ["--num-prompts", "20"]
LARGEST_PICTURE = 100_000


def _readme_tests() -> Any:
    spec = importlib.util.spec_from_file_location("readme_tests", ROOT / "tests/test_readme.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


README_TESTS = _readme_tests()


def folder_like_the_root(folder: Path) -> Path:
    """Fill a folder with links to all that the repository's root has, so that what pages write stays in it."""
    for item in ROOT.iterdir():
        if not item.name.startswith(".") and item.name not in ("build", "out"):
            (folder / item.name).symlink_to(item)
    return folder


@contextlib.contextmanager
def standing_in(folder: Path) -> Iterator[None]:
    """Run the block in a folder, with a cache beside it, in one process: workers take longer to start than to work."""
    before, known = Path.cwd(), dict(os.environ)
    os.environ.update({"XDG_CACHE_HOME": str(folder.parent / "cache"), "NO_COLOR": "1", "COLUMNS": "80"})
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    try:
        with patch("os.cpu_count", return_value=1):
            yield
    finally:
        sys.path.remove(str(folder))
        os.chdir(before)
        os.environ.clear()
        os.environ.update(known)


@functools.cache
def membound(words: tuple[str, ...], folder: Path) -> str:
    """Run ``membound WORDS…`` in this process, once for each folder we stand in; both streams with ``2>&1``."""
    del folder
    out, err = io.StringIO(), io.StringIO()
    both = "2>&1" in words
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out if both else err):
        main([word for word in words if word != "2>&1"])
    return out.getvalue()


def printed(command: str) -> str:
    """Run a command of a page where we stand, and return what it prints."""
    first, _, rest = command.partition(" | ")
    if not first.startswith("membound "):
        return README_TESTS.printed(command, cwd=Path.cwd())
    text = membound(tuple(word for each in shlex.split(first)[1:] for word in globbed(each)), Path.cwd())
    return README_TESTS.printed(rest, cwd=Path.cwd(), given=text) if rest else text


def globbed(word: str) -> list[str]:
    """Return what a shell makes of a word with a star in it."""
    return sorted(str(path) for path in Path().glob(word)) if "*" in word else [word]


def run_block(kind: str, title: str | None, text: str, run: Callable[[str], str] = printed) -> str:
    """Carry out a block where we stand, and return what it should say: files are written, commands run."""
    if title:
        Path(title).parent.mkdir(parents=True, exist_ok=True)
        Path(title).write_text(text)
    elif kind == "console":
        return "".join(f"$ {command}\n{run(command)}" for command, _ in README_TESTS.quoted(text))
    elif kind == "python":
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(text, "page", "exec"), {"__name__": "page"})
    elif kind == "yaml":
        serve_with(yaml.safe_load(text))
    return text


def serve_with(sections: dict[str, Any]) -> None:
    """Serve a few requests under sections of a scenario, laid over those of the demo."""
    base = {} if "model" in sections else yaml.safe_load(Path("examples/demo-chat.yaml").read_text())
    Path("sections.yaml").write_text(yaml.safe_dump(base | sections))
    with contextlib.redirect_stderr(io.StringIO()) as err, contextlib.redirect_stdout(io.StringIO()):
        drawn = (base | sections)["workload"].get("requests") is not None
        code = main(["simulate", "sections.yaml", *(FEW if drawn else [])])
    assert code == 0, err.getvalue()


def commands_of(block: str) -> str:
    """Return a block without what is quoted in it; blocks of two languages are the same if this is."""
    return re.sub(r"^(?!\$ |```).*\n", "", block, flags=re.M) if block.startswith("```console") else block


def translated(text: str, original: str) -> str:
    """Return a translation that quotes what the original does now."""
    known = {commands_of(found[0]): found[0] for found in FENCED.finditer(original)}
    return FENCED.sub(lambda found: known.get(commands_of(found[0]), found[0]), text)


def rewritten(page: Path) -> str:
    """Return a page with its console blocks brought up to date."""

    def block(found: re.Match[str]) -> str:
        kind, title, text = found.groups()
        head = found[0].split("\n", 1)[0]
        return f"{head}\n{run_block(kind, title, text)}```"

    return FENCED.sub(block, page.read_text())


@pytest.mark.parametrize("page", RUN, ids=lambda page: str(page.relative_to(DOCS)))
def test_every_block_of_a_page_runs_and_prints_what_is_quoted(page: Path, tmp_path: Path):
    with standing_in(folder_like_the_root(tmp_path)):
        assert rewritten(page) == page.read_text()


@pytest.mark.parametrize("page", RUN, ids=lambda page: str(page.relative_to(DOCS)))
def test_every_block_of_a_page_says_what_it_is(page: Path):
    fences = re.findall(r"^```(.*)$", page.read_text(), re.M)
    opened = [fence.split(" ")[0] for fence in fences[::2]]
    assert set(opened) <= {"console", "python", "yaml", "json", "csv", "text"}
    assert all(fence == "" for fence in fences[1::2])


@pytest.mark.parametrize(("korean", "english"), TRANSLATED.items())
def test_a_translation_has_the_commands_of_the_original_and_quotes_the_same(korean: str, english: str):
    own, blocks = (
        [found[0] for found in FENCED.finditer((ROOT / each).read_text())] for each in (korean, english)
    )
    assert own
    assert [block for block in own if block not in blocks] == []
    if korean.startswith("docs/"):
        assert own == blocks


@pytest.mark.parametrize("document", [*PAGES, ROOT / "README.ko.md"], ids=lambda each: each.name)
def test_every_link_of_a_page_leads_somewhere(document: Path):
    linked = [link for link in re.findall(r"\]\(([^)#]+)", document.read_text()) if "://" not in link]
    assert [link for link in linked if not (document.parent / link).exists()] == []


def test_the_documentation_names_all_policies_and_kinds_that_are_there():
    text = "\n".join(page.read_text() for page in PAGES)
    eviction = re.search(r"kind: Literal\[(.*)\]", (ROOT / "sim/scenario/sections.py").read_text())
    assert eviction is not None
    there = [
        *policy_names("scheduler"), *policy_names("kvcache"), *policy_names("router"), *policy_names("tierpolicy"),
        *find_processes(), *list_tiers(), *re.findall(r'"(\w+)"', eviction[1]), *format_names(),
    ]  # fmt: skip
    assert [name for name in there if f"`{name}`" not in text] == []


EXPLAINED_ELSEWHERE = {"scenario", "interval", "lanes", "draws", "rejected_by_reason"}
RUNS_WITH_ALL_SECTIONS = {
    "windows and classes": ("demo-chat", "simulation.window=1s", "slo.classes={default: {ttft_s: 1, tpot_s: 1}}"),
    "speculation": ("demo-chat", "speculative={method: eagle, num_speculative_tokens: 2, acceptance: 0.7}"),
    "replicas": ("cluster",),
    "pools": ("disaggregated",),
    "replicas that come and go": ("autoscaled",),
    "a second model": ("two-models", "colocated.workload.requests=5"),
    "split units": ("compute-split",),
    "tiers and swap": ("levers-kv/6-dram-tier", "scheduler.preemption_mode=swap"),
}  # fmt: skip


def keys_of(tree: Any) -> Iterator[str]:
    """Name every key of a summary, those whose insides are names of something else as one."""
    if isinstance(tree, Mapping):
        for key, inner in tree.items():
            yield key
            yield from () if key in EXPLAINED_ELSEWHERE else keys_of(inner)
    elif isinstance(tree, list):
        for inner in tree:
            yield from keys_of(inner)


@pytest.mark.parametrize(("example", "settings"), [(name, own) for name, *own in RUNS_WITH_ALL_SECTIONS.values()],
                         ids=RUNS_WITH_ALL_SECTIONS)  # fmt: skip
def test_the_nomenclature_defines_every_key_of_a_summary(example: str, settings: list[str]):
    scenario = mb.load_scenario(ROOT / f"examples/{example}.yaml", ["workload.requests=10", *settings])
    said = set(re.findall(r"`(\w+)`", (DOCS / "nomenclature.md").read_text())) | set(list_tiers())
    assert sorted(set(keys_of(mb.simulate(scenario).summary())) - said) == []


def test_every_picture_is_made_by_the_tool_small_and_shown():
    made = set(re.findall(r'^    "([\w-]+)": ', (DOCS / "pictures.py").read_text(), re.M))
    there = {picture.stem: picture for picture in (DOCS / "pictures").glob("*.svg")}
    assert set(there) == made
    text = "\n".join(page.read_text() for page in PAGES)
    assert [name for name in there if f"pictures/{name}.svg" not in text] == []
    assert [name for name, file in there.items() if file.stat().st_size >= LARGEST_PICTURE] == []
    assert [
        name for name, file in there.items() if "http://www.w3.org/2000/svg" not in file.read_text()
    ] == []


def test_the_site_builds_without_a_warning_and_asks_the_network_for_nothing(tmp_path: Path):
    pytest.importorskip("material", reason="the site's theme")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (built.returncode, "WARNING" in built.stderr) == (0, False), built.stderr
    for page in (tmp_path / "site").rglob("*.html"):
        asked = re.findall(r'<(?:script|link|img|iframe)[^>]*(?:src|href)="(https?:)', page.read_text())
        assert asked == [], page


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as whole:
        for number, page in enumerate([Path(each).resolve() for each in sys.argv[1:]] or RUN):
            folder = Path(whole) / str(number)
            folder.mkdir()
            with standing_in(folder_like_the_root(folder)):
                page.write_text(rewritten(page))
    for korean, english in TRANSLATED.items():
        (ROOT / korean).write_text(translated((ROOT / korean).read_text(), (ROOT / english).read_text()))
