"""How long a reader of the dashboard waits: from opening a page to its first chart, and after moving a lever.

Run it where the dashboard would run, with a Chromium at hand:

    python benchmarks/dashboard.py

The page is opened in a session of its own each time, with another scenario, so that nothing of it has been run before.
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
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

COMMAND = "import sys; from membound.app.cli import main; sys.exit(main(sys.argv[1:]))"
CHART = "[data-testid=stVegaLiteChart] canvas, [data-testid=stVegaLiteChart] svg"
OPEN_BAR_S, LEVER_BAR_S = 3.0, 2.0


def main() -> int:
    """Print both times with their bars; 1 where one is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=2000, help="requests of the run that a lever changes")
    parser.add_argument("--repeat", type=int, default=5)
    asked = parser.parse_args()
    browser = next((found for name in ("chromium", "google-chrome") if (found := shutil.which(name))), None)
    if browser is None:
        sys.exit("no Chromium here; apt-get install chromium")
    with tempfile.TemporaryDirectory() as store:
        words = [sys.executable, "-c", COMMAND, "dashboard", "--port", "0", "--store", store]
        with (
            subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as server,
            sync_playwright() as driver,
        ):
            try:
                assert server.stderr is not None
                found = re.search(r"http://\S+", server.stderr.readline())
                assert found is not None
                opened = driver.chromium.launch(executable_path=browser, args=["--no-sandbox"])
                opens = [open_s(opened, found[0], seed) for seed in range(asked.repeat)]
                levers = lever_s(opened, found[0], asked.requests, asked.repeat)
            finally:
                server.terminate()
    print(f"{'':<44}{'median':>9}{'worst':>9}{'bar':>7}{'CPU':>9}   [s], of {asked.repeat}")
    line("page opened to first chart", opens, OPEN_BAR_S)
    line(f"lever moved to new figure, {asked.requests:,} requests", levers, LEVER_BAR_S)
    return int(any(middle(took) > bar for took, bar in ((opens, OPEN_BAR_S), (levers, LEVER_BAR_S))))


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


def open_s(browser: Any, address: str, seed: int) -> Took:
    """Return how long a page takes to its first chart, in a new session with a run of its own [s]."""
    context = browser.new_context()
    page = context.new_page()
    begun, used = time.perf_counter(), cpu_s()
    page.goto(f"{address}/?seed={seed}&draws=none")
    page.wait_for_selector(CHART, timeout=60_000)
    took = time.perf_counter() - begun, cpu_s() - used
    context.close()
    return took


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


def line(what: str, took: list[Took], bar: float) -> None:
    worst = max(each[0] for each in took)
    print(f"{what:<44}{middle(took):9.2f}{worst:9.2f}{bar:7.1f}{middle(took, 1):9.2f}")


if __name__ == "__main__":
    sys.exit(main())
