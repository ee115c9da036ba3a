"""Every page, drawn without a browser: by itself, with every lever at its ends, and from an address that cannot be."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("streamlit", reason="draws the pages")
pytest.importorskip("altair", reason="draws the charts")
from membound.app.dashboard.levers import Lever, levers
from membound.app.dashboard.main import PAGES
from streamlit.testing.v1 import AppTest

SMALL = {"n": "20", "isl": "64", "osl": "8", "rate": "20", "draws": "none", "b": ""}
Show = Callable[..., AppTest]

pytestmark = pytest.mark.filterwarnings("default")  # Streamlit and its server warn of their own


@pytest.fixture
def show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Show:
    """Return a function that draws a page for an address, with a store of its own."""
    monkeypatch.setenv("MEMBOUND_DASHBOARD_STORE", str(tmp_path / "store"))
    monkeypatch.delenv("MEMBOUND_DASHBOARD_SCENARIO", raising=False)

    def draw(page: str, **address: str) -> AppTest:
        script = f"from membound.app.dashboard.main import run\nrun({page!r})"
        test = AppTest.from_string(script, default_timeout=180)
        for name, value in (SMALL | address).items():
            test.query_params[name] = value
        test.run()
        assert not test.exception
        return test

    return draw


def texts(test: AppTest) -> str:
    """Return everything a page says in words."""
    kinds = (test.markdown, test.text, test.caption, test.error, test.warning, test.info)
    return "\n".join(str(each.value) for kind in kinds for each in kind)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_draws_itself(show: Show, page: str):
    test = show(page)
    assert test.title[0].value == PAGES[page][0]
    assert not test.error


@pytest.mark.parametrize("lever", levers(), ids=lambda lever: lever.key)
def test_a_lever_at_its_ends_gives_figures_or_one_line_that_says_why_not(show: Show, lever: Lever):
    ends: tuple[Any, ...] = (
        (lever.low, lever.high) if lever.kind != "choice" else lever.choices[:: len(lever.choices) - 1]
    )
    for end in ends:
        if lever.key == "n" and end == lever.high:
            continue  # 20,000 requests take their time; the end itself is read back elsewhere
        word = str(int(end)) if lever.kind == "whole" else str(end)
        test = show(
            "what-if", **({lever.key: word} | ({"arrivals": "closed_loop"} if lever.key == "users" else {}))
        )
        assert len(test.metric) == 5 or len(test.error) >= 1
        assert "\n" not in "".join(error.value for error in test.error)


def test_what_an_address_cannot_mean_is_said_and_the_default_taken(show: Show):
    test = show("what-if", device="h100_smx", tp="3", foo="1", b_bw="-1", b="bw")
    said = texts(test)
    assert "device: 'h100_smx' is not known; nearest: 'h100_sxm'; the default is used" in said
    assert "tp: '3' is not known" in said
    assert "b_bw: -1 is not allowed" in said
    assert "foo: no such lever" in said
    assert test.session_state["device"] == "h100_sxm"
    assert test.session_state["tp"] == "1"
    assert len(test.metric) == 5


def test_levers_stand_where_the_address_says(show: Show):
    test = show("what-if", device="l40s", kv="fp8", seqs="8")
    said = "\n".join(each.value for each in test.code)
    assert "--device l40s --model llama-3.1-8b --kv-cache-dtype fp8 --max-num-seqs 8" in said
    assert "device: l40s" in said


def test_a_model_that_does_not_fit_is_one_line_that_says_what_would(show: Show):
    test = show("what-if", model="llama-3.1-70b", device="l4")
    assert "does not fit" in test.error[0].value


def test_measured_points_are_drawn_beside_a_plan(show: Show):
    test = show("capacity", gpus="h100_sxm")
    test.button(key="search plan").click().run()
    for _ in range(60):
        if any(each.label.startswith("Measured") for each in test.expander):
            break
        time.sleep(1.0)
        test.run()
    header = b"run_id,gpu,model,engine,isl,osl,concurrency,ttft_ms,tpot_ms,tp_size\n"
    for content, said in (
        (b"a,h100_sxm,llama-3.1-8b,vllm,64,64,4,20,9,1\n", "1 measured points"),
        (b"x\n", ""),
    ):
        test.file_uploader(key="measured").set_value([("p.csv", header + content, "text/csv")]).run()
        assert not test.exception
        assert (said in texts(test)) if said else len(test.error) == 1


def test_intervals_stand_beside_figures_once_they_are_drawn(show: Show):
    test = show("what-if", draws="19 draws", b="bw")
    heads = list(test.dataframe[0].value.columns)
    assert "A, 90 %" in heads
    assert "change, 90 %" in heads
