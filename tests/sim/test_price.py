"""What a GPU hour costs: set, listed, spot, from a table of one's own, or owned."""

import pytest
import yaml
from membound.hwmodels.errors import MemboundError
from membound.hwmodels.prices import list_price, offers
from membound.sim.scenario import parse_scenario
from membound.sim.scenario.resolve import resolve

BASE = """
device: h100_sxm
model: llama-3.1-8b
workload: {arrivals: {kind: poisson, rate_per_s: 1}, input_tokens: 100, output_tokens: 10, requests: 10}
"""


def resolved(*sets):
    return resolve(parse_scenario(yaml.safe_load(BASE), list(sets)))


def test_spot_is_an_offers_own_spot_price_and_below_the_list_price():
    spot, listed = resolved("price.plan=spot"), resolved()
    assert spot.usd_per_gpu_hour in {offer.spot_usd_per_hour for offer in offers()["h100_sxm"]}
    assert spot.usd_per_gpu_hour < listed.usd_per_gpu_hour
    assert spot.price_note.startswith("spot price, ")
    assert list_price("a10", spot=True) is None


def test_an_owned_gpu_costs_its_share_of_price_upkeep_and_electricity_every_hour():
    owned = "price={plan: owned, owned: {usd_per_gpu: 35064, years: 4, usd_per_kwh: 0.1, overhead: 1.5}}"
    assert resolved(owned).usd_per_gpu_hour == pytest.approx(35064 / 4 / 8766 + 0.7 * 1.5 * 0.1)


def test_a_table_of_ones_own_replaces_the_list(tmp_path):
    offer = {
        "usd_per_hour": 1.5, "provider": "own", "instance": "reserved 3 years", "region": "any",
        "dated": "2026-11", "source": "contract",
    }  # fmt: skip
    table = tmp_path / "mine.yaml"
    table.write_text(yaml.safe_dump({"offers": {"h100_sxm": [offer]}}))
    found = resolved(f"price.table={table}")
    assert (found.usd_per_gpu_hour, found.price_note) == (1.5, "price, own, 2026-11")


@pytest.mark.parametrize(
    ("assignment", "says"),
    [
        ("price.plan=owned", ["owned", "usd_per_gpu"]),
        ("price={usd_per_gpu_hour: 2, plan: spot}", ["usd_per_gpu_hour", "plan"]),
        ("price.table=/nowhere/mine.yaml", ["/nowhere/mine.yaml"]),
        ("price={plan: owned, owned: {usd_per_gpu: -1, years: 3}}", ["usd_per_gpu", "-1"]),
        ("price.plan=leased", ["price.plan", "leased", "on_demand"]),
    ],
)
def test_a_price_that_cannot_be_is_refused_in_one_line(assignment, says):
    with pytest.raises(MemboundError) as caught:
        resolved(assignment)
    assert "\n" not in str(caught.value)
    assert all(part in str(caught.value) for part in says), str(caught.value)
