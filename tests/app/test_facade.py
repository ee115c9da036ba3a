"""``import membound as mb``: every name is there, loaded when used, and answers as the command line does."""

from __future__ import annotations

import json

import membound as mb
import pytest


def test_every_name_is_there():
    for name in mb.__all__:
        assert getattr(mb, name) is not None
        assert name in dir(mb)


def test_an_unknown_name_says_what_there_is():
    with pytest.raises(AttributeError, match=r"no attribute 'simulte'; it has .*simulate"):
        _ = mb.simulte


def test_a_script_simulates_and_sizes(membound, small):
    scenario = mb.load_scenario(small)
    summary = mb.simulate(scenario).summary()
    assert summary == json.loads(membound("simulate", small, "--format", "json").out)
    assert mb.size(scenario).memory["num_gpu_blocks"] == summary["memory"]["num_gpu_blocks"]


def test_a_script_asks_the_catalogues():
    assert mb.load_device("h100_sxm").n_sm == 132
    assert mb.load_model("llama-3.1-8b").n_layers == 32
    assert mb.load_engine("vllm-0.24").async_scheduling
    assert "h100_sxm" in mb.list_devices()
    with pytest.raises(mb.MemboundError, match="nearest: 'h100_sxm'"):
        mb.load_device("h10_sxm")
