"""The dashboard in a real browser: levers, links, files down and up, nothing fetched from elsewhere, no complaint."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("streamlit", reason="draws the pages")
playwright = pytest.importorskip("playwright.sync_api", reason="drives the browser")
pytest.importorskip("altair", reason="draws the charts")
from membound.app.dashboard.main import PAGES  # noqa: E402
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
            assert server.wait(20) == 128 + signal.SIGTERM, (
                "it leaves as after Ctrl+C, with what it has started"
            )


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu"])
        yield opened
        opened.close()


Open = Callable[..., Any]
CHART = "[data-testid=stVegaLiteChart]"
FIRST = {
    "bottleneck": CHART, "load": CHART, "timeline": CHART, "capacity": "button:has-text('Search 4')",
    "calibration": "[data-testid=stDataFrame]",
}  # fmt: skip
"""Page -> what it shows soon, whatever it goes on to work out."""


@pytest.fixture
def visit(address: str, browser: Any) -> Iterator[Open]:
    """Return a function that opens a page in a session of its own; at the end nobody may have complained."""
    complaints: list[str] = []
    elsewhere: list[str] = []
    contexts: list[Any] = []

    def to(path: str = "", *, whole: bool = True, **options: Any) -> Any:
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
        if whole:
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


def picture(page: Any, told: str) -> str:
    """Return the drawing of a chart."""
    drawn = page.locator(f"[aria-label='{told}'] canvas, [aria-label='{told}'] svg").first
    drawn.wait_for()
    return hashlib.sha256(drawn.screenshot()).hexdigest()


def saved(page: Any, button: str, path: Path) -> Path:
    """Press a button and return the file that comes."""
    with page.expect_download() as waiting:
        page.get_by_role("button", name=button).click()
    waiting.value.save_as(path)
    return path


def set_number(page: Any, label: str, value: str) -> None:
    number(page, label).fill(value)
    number(page, label).press("Enter")


def test_a_moved_lever_changes_figure_and_chart_and_the_link_shows_others_the_same(visit: Open):
    page = visit(f"?{SMALL}")
    before, drawn = metric(page, "TPOT p50"), picture(page, "What each run waited for")
    set_number(page, "HBM bandwidth ×", "3")
    page.wait_for_function("value => !document.body.innerText.includes(value)", arg=before)
    settle(page)
    after = metric(page, "TPOT p50")
    assert float(after) < float(before)
    assert picture(page, "What each run waited for") != drawn
    assert "b_bw=3" in page.url
    other = visit(page.url)
    assert metric(other, "TPOT p50") == after
    assert number(other, "HBM bandwidth ×").input_value() == "3"
    keep(page, "what-if")


@pytest.mark.parametrize("name", [name for name in PAGES if name != "what-if"])
def test_a_page_opens_by_its_link_and_keeps_the_scenario(visit: Open, name: str):
    page = visit(f"{name}?{SMALL}&device=l40s", whole=False)
    page.wait_for_selector(f"h1:has-text('{PAGES[name][0]}')")
    page.wait_for_selector("[data-testid=stSidebar] [role=combobox] >> nth=5")
    page.wait_for_selector(FIRST[name])
    assert "device=l40s" in page.url
    page.get_by_role("link", name="What-if").click()
    page.wait_for_selector("[data-testid=stMetric]:has-text('TPOT p50')")
    assert "device=l40s" in page.url


def test_the_answer_stands_on_the_page_before_it_is_drawn(visit: Open):
    page = visit(f"?{SMALL}&seed=5", whole=False)
    page.wait_for_selector("#opening figure")
    assert "next lever" in page.inner_text("#opening")
    page.wait_for_selector(f"{CHART} canvas, {CHART} svg")
    settle(page)
    assert page.locator("#opening").count() == 0
    assert page.title() == "membound"


def test_long_work_shows_how_far_it_is_and_can_be_stopped(visit: Open):
    page = visit(f"load?{SMALL}")  # drawn whole first: what a slow browser shows late may have ended by then
    sidebar = page.locator("[data-testid=stSidebar]")
    sidebar.locator("summary", has_text="Load").click()
    requests = sidebar.get_by_role("spinbutton", name="Requests", exact=True)
    requests.fill("600")
    requests.press("Enter")
    page.wait_for_selector(
        "text=9 rates, 3 seeds each"
    )  # the run itself, too, can be stopped where it takes long
    page.get_by_role("button", name="Stop").click()
    page.wait_for_selector("text=9 rates, 3 seeds each: stopped.")
    settle(page)
    assert page.get_by_role("button", name="Run them").is_visible()
    assert picture(page, "Share of requests served within a time")


def test_the_downloaded_file_is_the_scenario_of_the_sidebar(visit: Open, tmp_path: Path):
    page = visit(f"?{SMALL}&device=l40s&kv=fp8")
    page.get_by_role("button", name="Command and YAML").click()
    page.get_by_role("tab", name="YAML").click()
    path = saved(page, "Download scenario.yaml", tmp_path / "scenario.yaml")
    scenario = load_scenario(path)
    assert (scenario.device, scenario.quantization.kv_cache) == ("l40s", "fp8")


def test_the_downloaded_trace_holds_the_steps_of_the_run(visit: Open, tmp_path: Path):
    page = visit(f"timeline?{SMALL}")
    path = saved(page, "Download the Chrome trace", tmp_path / "trace.json.gz")
    trace = json.loads(gzip.decompress(path.read_bytes()))
    steps = int(metric(page, "Steps").replace(",", ""))
    assert steps > 10
    assert len([each for each in trace["traceEvents"] if each.get("ph") == "X"]) >= steps
    keep(page, "timeline")


def test_a_good_file_is_held_against_the_simulation_and_a_bad_one_refused_in_a_line(
    visit: Open, tmp_path: Path
):
    good, bad = tmp_path / "served.csv", tmp_path / "broken.csv"
    rows = (f"{0.1 * at},128,16,{0.02},{0.2}" for at in range(30))
    good.write_text("\n".join(["arrival_s,input_tokens,output_tokens,ttft_s,e2e_s", *rows, ""]))
    bad.write_text("a,b\n1,2\n")
    page = visit(f"calibration?{SMALL}")
    page.set_input_files("input[type=file]", str(bad))
    page.wait_for_selector("[data-testid=stAlert]")
    assert "broken.csv" in page.inner_text("[data-testid=stAlert]")
    page.get_by_role("button", name=re.compile("Remove")).first.click()
    page.set_input_files("input[type=file]", str(good))
    page.wait_for_selector("text=served.csv: requests of a load generator")
    settle(page)
    assert page.locator("[data-testid=stAlert]").count() == 0
    assert picture(page, "Served runs against their replay")
    keep(page, "calibration")


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
