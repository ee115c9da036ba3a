"""``membound dashboard``: one line for what is missing or cannot be; this machine alone."""

from __future__ import annotations

import socket

import pytest
from membound.app.dashboard import serve


def test_what_is_not_installed_is_one_line_that_says_what_to_install(membound, monkeypatch):
    monkeypatch.setattr(serve, "find_spec", lambda name: None)
    ran = membound("dashboard")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == "error: the dashboard needs streamlit and altair; pip install 'membound[app]'\n"


def test_a_scenario_that_cannot_be_read_is_refused_before_anything_starts(membound):
    pytest.importorskip("streamlit")
    ran = membound("dashboard", "nowhere.yaml")
    assert ran.code == 2
    assert "nowhere.yaml" in ran.err


def test_a_taken_port_gives_the_next_one_and_it_is_on_loopback():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert port < serve.free_port(port) <= port + serve.TRIED
    chosen = serve.options(port)
    assert chosen["server.address"] == "127.0.0.1"
    assert chosen["browser.gatherUsageStats"] is False
