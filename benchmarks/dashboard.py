"""How long a reader of the dashboard waits: for the server, from opening a page to its charts, after moving a lever.

Run it where the dashboard would run, with a Chromium at hand:

    python benchmarks/dashboard.py

Each time the server and the browser are started anew, with an empty store and an empty cache, and the page is opened as
soon as its address is told. It is opened twice: as it comes, and by a link to a scenario that nothing has run before.
The first picture is the answer in words with a chart that the server has drawn; the first live chart is the browser's.
Beside the time on the clock, which others on the machine lengthen, stands the CPU time of server and browser together.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

COMMAND = "import sys; from membound.app.cli import main; sys.exit(main(sys.argv[1:]))"
CHART = "[data-testid=stVegaLiteChart] canvas, [data-testid=stVegaLiteChart] svg"
PICTURE = f"#opening figure, {CHART}"
OPENED = {"page": "", "link": "?seed={seed}&device=h200_sxm&kv=fp8"}
OPEN_BAR_S, LEVER_BAR_S = 3.0, 2.0


def main() -> int:
    """Print the times with their bars; 1 where one is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=2000, help="requests of the run that a lever changes")
    parser.add_argument("--repeat", type=int, default=5)
    asked = parser.parse_args()
    browser = next((found for name in ("chromium", "google-chrome") if (found := shutil.which(name))), None)
    if browser is None:
        sys.exit("no Chromium here; apt-get install chromium")
    starts: list[Took] = []
    opens: dict[str, list[tuple[Took, Took]]] = {each: [] for each in OPENED}
    levers: list[Took] = []
    with sync_playwright() as driver:
        for seed in range(asked.repeat):
            begun, used = time.perf_counter(), cpu_s()
            with served() as address:
                starts.append((time.perf_counter() - begun, cpu_s() - used))
                for each, path in OPENED.items():
                    with started(driver, browser) as opened:
                        opens[each].append(open_s(opened, f"{address}/{path.format(seed=seed)}"))
                if seed == asked.repeat - 1:
                    with started(driver, browser) as opened:
                        levers = lever_s(opened, address, asked.requests, asked.repeat)
    print(f"{'':<44}{'median':>9}{'worst':>9}{'bar':>7}{'CPU':>9}   [s], of {asked.repeat}")
    line("server started to address told", starts, None)
    for each, took in opens.items():
        line(f"{each} opened to first picture", [first for first, _ in took], OPEN_BAR_S)
        line(f"{each} opened to first live chart", [live for _, live in took], None)
    line(f"lever moved to new figure, {asked.requests:,} requests", levers, LEVER_BAR_S)
    late = any(middle([first for first, _ in took]) > OPEN_BAR_S for took in opens.values())
    return int(late or middle(levers) > LEVER_BAR_S)


@contextmanager
def started(driver: Any, browser: str) -> Iterator[Any]:
    """Start a browser that knows nothing yet."""
    opened = driver.chromium.launch(executable_path=browser, args=["--no-sandbox"])
    try:
        yield opened
    finally:
        opened.close()


@contextmanager
def served() -> Iterator[str]:
    """Serve the dashboard as a user would, with a store of its own, and give the address that it tells."""
    with tempfile.TemporaryDirectory() as store:
        words = [sys.executable, "-c", COMMAND, "dashboard", "--port", "0", "--store", store]
        with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as server:
            try:
                assert server.stderr is not None
                found = re.search(r"http://\S+", server.stderr.readline())
                assert found is not None
                yield found[0]
            finally:
                server.terminate()


Took = tuple[float, float]
"""Time on the clock, and CPU time of server and browser [s]."""


def cpu_s() -> float:
    """Return the CPU time of every process below this one that is still there [s]."""
    parent: dict[str, str] = {}
    ticks: dict[str, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        parent[stat.parent.name], ticks[stat.parent.name] = fields[1], int(fields[11]) + int(fields[12])

    def below(process: str) -> bool:
        while process in parent:
            process = parent[process]
            if process == str(os.getpid()):
                return True
        return False

    return sum(used for process, used in ticks.items() if below(process)) / os.sysconf("SC_CLK_TCK")


def open_s(browser: Any, address: str) -> tuple[Took, Took]:
    """Return how long a page takes to its first picture, and to its first chart that answers the pointer [s]."""
    page = browser.new_page()
    begun, used = time.perf_counter(), cpu_s()
    page.goto(address, wait_until="commit")
    took: list[Took] = []
    for shown in (PICTURE, CHART):
        page.wait_for_selector(shown, timeout=120_000)
        took.append((time.perf_counter() - begun, cpu_s() - used))
    page.close()
    return took[0], took[1]


def lever_s(browser: Any, address: str, requests: int, repeat: int) -> list[Took]:
    """Return how long the figures take to follow a lever of the sidebar [s]."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{address}/bottleneck?n={requests}")
    dram = page.locator("[data-testid=stMetric]", has_text="dram_active").locator(
        "[data-testid=stMetricValue]"
    )
    dram.wait_for(timeout=60_000)
    page.get_by_text("A GPU that does not exist").click()
    box = page.get_by_role("spinbutton", name="HBM bandwidth ×")
    took: list[Took] = []
    for at in range(repeat):
        before = dram.inner_text()
        begun, used = time.perf_counter(), cpu_s()
        box.fill(f"{1.3 + 0.3 * at:.1f}")
        box.press("Enter")
        page.wait_for_function(
            "before => [...document.querySelectorAll('[data-testid=stMetric]')].some(each =>"
            " each.innerText.includes('dram_active') && !each.innerText.includes(before))",
            arg=before, timeout=60_000, polling=20,
        )  # fmt: skip
        took.append((time.perf_counter() - begun, cpu_s() - used))
        page.wait_for_timeout(500)
    context.close()
    return took


def middle(took: list[Took], which: int = 0) -> float:
    return statistics.median(each[which] for each in took)


def line(what: str, took: list[Took], bar: float | None) -> None:
    worst = max(each[0] for each in took)
    said = f"{bar:7.1f}" if bar else f"{'':>7}"
    print(f"{what:<44}{middle(took):9.2f}{worst:9.2f}{said}{middle(took, 1):9.2f}")


if __name__ == "__main__":
    sys.exit(main())
