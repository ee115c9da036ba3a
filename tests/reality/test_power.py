"""The published power model is the fit of measured runs, predicts settings that it has not seen, and peaks as well."""

from pathlib import Path

import numpy as np
import pytest
from membound.calibrate.power import DEVICE, account_of_run, fit_power_least_squares, read_power_runs
from membound.hwmodels.device import load_device
from membound.hwmodels.power import boards, power_model

TABLE = Path(__file__).parents[3] / "shared" / "measured" / "steps" / "steps_splitwise.csv.gz"

pytestmark = pytest.mark.skipif(not TABLE.is_file(), reason="the measured steps (../shared) are not here")


def test_the_published_shares_are_the_fit_of_the_measured_runs():
    fit, published = fit_power_least_squares(read_power_runs(TABLE)), boards()[DEVICE]
    stated = (published.idle, published.compute, published.memory)
    for found, error, said in zip(fit.estimate, fit.stderr, stated, strict=True):
        assert found == pytest.approx(said.value, abs=said.stderr)
        assert error == pytest.approx(said.stderr, rel=0.5)
    assert fit.spread <= published.spread * 1.1


def test_settings_left_out_of_the_fit_are_predicted_within_6_percent():
    fit = fit_power_least_squares(read_power_runs(TABLE))
    assert float(np.mean(np.abs(1.0 / fit.ratio - 1.0))) <= 0.06


@pytest.mark.parametrize(
    ("model", "ranks", "isl", "prefill_s", "peak"),
    [
        ("bloom-176b", 8, 128, 0.07967, 0.691),
        ("bloom-176b", 8, 512, 0.17381, 0.876),
        ("llama2-70b", 4, 256, 0.07857, 0.813),
        ("llama2-70b", 8, 256, 0.06676, 0.658),
        ("llama2-70b", 8, 512, 0.09431, 0.749),
        ("llama2-70b", 8, 1024, 0.15446, 0.744),
    ],
)
def test_peak_power_which_no_fit_saw_is_that_of_the_prefill(model, ranks, isl, prefill_s, peak):
    """Where the board's limit does not hold the peak down; source: Mutinifni/splitwise-sim@8f99e7dc."""
    prefill, _ = account_of_run(model, ranks, isl, 1, 2, prefill_s, 0.05)
    power = power_model(load_device(DEVICE))
    drawn = power.idle + float(
        power.above_idle_s(np.array([prefill_s]), prefill.tensor_active_s, prefill.dram_active_s)[0]
        / prefill_s
    )
    assert drawn == pytest.approx(peak, rel=0.15)
