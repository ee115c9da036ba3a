"""A board draws at least what it draws idle, at most its limit, and more the more it does."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from membound.hwmodels.catalog import ids
from membound.hwmodels.device import DEVICES, load_device
from membound.hwmodels.power import boards, power_model

SHARE = st.floats(0.0, 1.0)


@given(SHARE, SHARE)
def test_power_lies_between_the_idle_board_and_the_limit(tensor, dram):
    power = power_model(load_device("a100_sxm_80gb"))
    above = power.above_idle_s(np.ones(1), np.array([tensor]), np.array([dram]))
    watts = power.joule(1.0, float(above[0]))
    assert power.idle * power.limit_w <= watts <= power.limit_w * (1 + 1e-12)
    more = power.above_idle_s(np.ones(1), np.array([min(1.0, tensor + 0.1)]), np.array([dram]))
    assert more[0] >= above[0]


@pytest.mark.parametrize("name", ids(DEVICES))
def test_every_device_with_a_limit_has_a_model_that_says_whose_power_was_measured(name):
    device = load_device(name)
    power = power_model(device)
    if device.tdp_w is None:
        assert power is None
        return
    assert power.limit_w == device.tdp_w
    assert power.level == ("measured" if name in boards() else "transferred")
    assert power.spread >= 0.05


def test_a_what_if_is_never_measured():
    assert power_model(load_device({"base": "a100_sxm_80gb", "hbm_bandwidth": "x1.5"})).level == "transferred"
