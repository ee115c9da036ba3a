"""What stands on a page before it is drawn: the answer to the address, of the runs that the page will ask for."""

from __future__ import annotations

import threading
from pathlib import Path
from urllib.parse import parse_qs, urlencode

import pytest

pytest.importorskip("streamlit", reason="draws the pages")
from membound.app.dashboard import main, opening, runs
from membound.app.dashboard.asked import base_of
from streamlit.testing.v1 import AppTest

SMALL = {"n": "25", "isl": "64", "osl": "8", "rate": "20", "draws": "none"}
TITLES = {name: title for name, (title, _) in main.PAGES.items()}

pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(autouse=True)
def _own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMBOUND_DASHBOARD_STORE", str(tmp_path / "store"))
    monkeypatch.delenv("MEMBOUND_DASHBOARD_SCENARIO", raising=False)


def test_the_picture_says_what_the_runs_of_the_address_say():
    address = urlencode(SMALL | {"seed": "11", "b": "kv"})
    assert opening.picture_of(address, TITLES, wait=False) is None
    picture = opening.picture_of(address, TITLES)
    assert picture is not None
    assert "<figure>" in picture
    for scenario in opening.scenarios_of(base_of(), parse_qs(address)):
        found = runs.known(scenario)
        assert found is not None
        assert found.summary["verdict"]["sentence"] in picture
    assert opening.picture_of(address, TITLES, wait=False) == picture


@pytest.mark.parametrize("moved", [{}, {"b": "kv,tp", "b_tp": "4"}, {"device": "l40s", "weights": "fp8"}])
def test_the_page_asks_for_the_runs_that_were_begun(moved: dict[str, str], monkeypatch: pytest.MonkeyPatch):
    given = SMALL | {"seed": "12"} | moved
    for scenario in opening.scenarios_of(base_of(), {name: [word] for name, word in given.items()}):
        runs.answer(scenario)

    def none_more(*_: object, **__: object) -> None:
        raise AssertionError("the page runs something else")

    monkeypatch.setattr(runs, "simulate", none_more)
    test = AppTest.from_string(
        "from membound.app.dashboard.main import run\nrun('what-if')", default_timeout=60
    )
    for name, word in given.items():
        test.query_params[name] = word
    test.run()
    assert not test.exception
    assert len(test.metric) == 5


@pytest.mark.parametrize(
    "address", ["page=capacity", "page=calibration", "n=20000", "model=llama-3.1-70b&device=l4&n=20"]
)
def test_an_address_without_a_quick_run_has_no_picture(address: str):
    assert opening.picture_of(address, TITLES) == ""


def test_a_run_that_is_asked_for_twice_at_once_is_made_once(monkeypatch: pytest.MonkeyPatch):
    (scenario,) = opening.scenarios_of(
        base_of(), {"page": ["timeline"]} | {name: [word] for name, word in (SMALL | {"seed": "13"}).items()}
    )
    made: list[int] = []
    simulate = runs.simulate

    def counted(*given: object, **named: object) -> object:
        made.append(1)
        return simulate(*given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(runs, "simulate", counted)
    threads = [threading.Thread(target=runs.answer, args=(scenario,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
