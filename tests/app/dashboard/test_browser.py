"""The dashboard in a real browser: levers, links, files down and up, nothing fetched from elsewhere, no complaint."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("streamlit", reason="draws the pages")
playwright = pytest.importorskip("playwright.sync_api", reason="drives the browser")
from membound.sim.scenario import load_scenario  # noqa: E402

ROOT = Path(__file__).parents[3]
SHOTS = ROOT / "screenshots"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = next((found for name in NAMES if (found := shutil.which(name))), None)
SMALL = "n=60&isl=128&osl=16&rate=20&draws=none"
WAIT_MS = 60_000

pytestmark = [
    pytest.mark.skipif(BROWSER is None, reason=f"no Chromium here ({', '.join(NAMES)})"),
    pytest.mark.filterwarnings("default"),
]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve the dashboard as a user would, and return the address that it prints."""
    command = "import sys; from membound.app.cli import main; sys.exit(main(sys.argv[1:]))"
    store = tmp_path_factory.mktemp("store")
    words = [sys.executable, "-c", command, "dashboard", "--port", "0", "--store", str(store)]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=os.environ) as server:
        try:
            assert server.stderr is not None
            line = server.stderr.readline()
            found = re.match(r"dashboard at (http://127\.0\.0\.1:\d+) ", line)
            assert found, line
            yield found[1]
        finally:
            server.terminate()
            server.wait(20)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu"])
        yield opened
        opened.close()


Open = Callable[..., Any]


@pytest.fixture
def visit(address: str, browser: Any) -> Iterator[Open]:
    """Return a function that opens a page in a session of its own; at the end nobody may have complained."""
    complaints: list[str] = []
    elsewhere: list[str] = []
    contexts: list[Any] = []

    def to(path: str = "", **options: Any) -> Any:
        context = browser.new_context(
            viewport={"width": 1280, "height": 1000}, accept_downloads=True, **options
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(WAIT_MS)
        page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda asked: elsewhere.append(asked.url) if address not in asked.url else None)
        page.goto(path if path.startswith("http") else f"{address}/{path}")
        settle(page)
        return page

    yield to
    for context in contexts:
        context.close()
    assert complaints == []
    assert [url for url in elsewhere if not url.startswith(("ws://127.0.0.1", "data:", "blob:"))] == []


def settle(page: Any) -> None:
    """Wait until the page has been drawn to its end."""
    page.wait_for_selector("h1")
    page.wait_for_selector("[data-testid=stApp][data-test-script-state=notRunning]")
    page.wait_for_selector("[data-testid=stApp][data-test-connection-state=CONNECTED]")


def metric(page: Any, label: str) -> str:
    """Return the value of a card."""
    card = page.locator("[data-testid=stMetric]", has_text=label)
    return card.locator("[data-testid=stMetricValue]").inner_text()


def keep(page: Any, name: str) -> None:
    """Keep a picture of the whole page, for people."""
    SHOTS.mkdir(exist_ok=True)
    height = page.evaluate("document.querySelector('[data-testid=stMain]').scrollHeight")
    page.set_viewport_size({"width": page.viewport_size["width"], "height": max(700, min(height + 20, 5000))})
    page.wait_for_timeout(300)
    page.screenshot(path=SHOTS / f"{name}.png")


def number(page: Any, label: str) -> Any:
    """Return a number of the page itself, not of its sidebar."""
    return page.locator("[data-testid=stMain]").get_by_role("spinbutton", name=label, exact=True)


def set_number(page: Any, label: str, value: str) -> None:
    number(page, label).fill(value)
    number(page, label).press("Enter")


def test_a_moved_lever_changes_the_figures_and_the_link_shows_others_the_same(visit: Open):
    page = visit(f"?{SMALL}")
    before = metric(page, "TPOT p50")
    set_number(page, "HBM bandwidth ×", "3")
    page.wait_for_function("value => !document.body.innerText.includes(value)", arg=before)
    settle(page)
    after = metric(page, "TPOT p50")
    assert float(after) < float(before)
    assert "b_bw=3" in page.url
    other = visit(page.url)
    assert metric(other, "TPOT p50") == after
    assert number(other, "HBM bandwidth ×").input_value() == "3"
    keep(page, "what-if")


def test_the_downloaded_file_is_the_scenario_of_the_sidebar(visit: Open, tmp_path: Path):
    page = visit(f"?{SMALL}&device=l40s&kv=fp8")
    page.get_by_role("tab", name="YAML").click()
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Download scenario.yaml").click()
    path = tmp_path / "scenario.yaml"
    waiting.value.save_as(path)
    scenario = load_scenario(path)
    assert (scenario.device, scenario.quantization.kv_cache) == ("l40s", "fp8")


def test_an_address_that_cannot_be_shows_defaults_and_says_so(visit: Open):
    page = visit(f"?{SMALL}&device=h100_smx&seqs=0")
    said = page.inner_text("[data-testid=stMain]")
    assert "nearest: 'h100_sxm'" in said
    assert "seqs: 0 is not allowed" in said
    assert metric(page, "TPOT p50") != ""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_page_is_whole_on_a_telephone(visit: Open, theme: str):
    page = visit(f"?{SMALL}", color_scheme=theme)
    page.set_viewport_size({"width": 420, "height": 900})
    page.wait_for_timeout(300)
    assert page.evaluate("document.documentElement.scrollWidth") <= 420
    keep(page, f"what-if-420-{theme}")
