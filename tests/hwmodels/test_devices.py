"""The device catalogue: every file is plausible, sourced and complete, and what-ifs change what they say."""

from __future__ import annotations

import csv
import pickle
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from membound.hwmodels.catalog import read_yaml
from membound.hwmodels.datalint import lint
from membound.hwmodels.datasheet import sourced_fields
from membound.hwmodels.device import DEVICES, DeviceProfile, list_devices, load_device
from membound.hwmodels.errors import CatalogError, UnitError
from membound.hwmodels.prices import offers

GIB = 2**30
DATASHEETS = Path(__file__).parents[2].parent / "shared" / "measured" / "gpus.csv"
CALIBRATED = ("h100_sxm", "a100_sxm_80gb", "b200_sxm", "l40s")
SERVING = ("gemm", "decode_attention", "prefill_attention", "elementwise", "allreduce", "moe")


def test_the_bundled_devices_are_the_thirty_of_the_datasheet_table_a_server_edition_and_a_later_tpu():
    assert len(list_devices()) == 32
    assert load_device("Ironwood").lane("gemm").level == "transferred_same_arch"
    server, other = load_device("rtx_pro_6000_server"), load_device("rtx_pro_6000")
    assert server.peak_flops == other.peak_flops
    assert server.lane("gemm").level == "transferred_same_arch"


@pytest.mark.parametrize("device", list_devices())
def test_every_bundled_device_passes_the_data_lint(device):
    assert lint(load_device(device)) == []


@pytest.mark.parametrize("device", list_devices())
def test_every_device_is_found_by_id_name_and_alias(device):
    profile = load_device(device)
    for name in (device, profile.name, *profile.aliases, device.upper().replace("_", "-")):
        assert load_device(name).id == device


@pytest.mark.parametrize("device", list_devices())
def test_every_device_has_a_lane_for_every_family_of_a_dense_or_moe_step(device):
    profile = load_device(device)
    for family in SERVING:
        lane = profile.lane(family)
        assert lane.family == family
        assert set(lane.params) == set(lane.stderr)
        own = lane.device == device
        assert lane.level in (
            {"measured", "prior"} if own else {"transferred_same_arch", "transferred_cross_arch"}
        )
        assert ("transferred from" in lane.source) == (not own)


@pytest.mark.parametrize("device", list_devices())
def test_every_value_has_a_source_and_recalled_ones_are_not_marked_checked(device):
    for name, sourced in sourced_fields(load_device(device).datasheet).items():
        assert sourced.source, name
        assert not (sourced.checked and "recalled" in sourced.source), name


@pytest.mark.skipif(not DATASHEETS.exists(), reason="the datasheet table is not beside this checkout")
def test_every_row_of_the_datasheet_table_is_a_device_with_its_numbers():
    rows = list(csv.DictReader(DATASHEETS.read_text(encoding="utf-8").splitlines()))
    assert len(rows) == 30
    for row in rows:
        profile = load_device(row["name"])
        assert profile.hbm_bandwidth == pytest.approx(float(row["mem_bw_gbs"]) * 1e9)
        unit = GIB if row["name"] == "TPU-v5p" else 1e9
        assert profile.hbm_bytes == pytest.approx(float(row["mem_gb"]) * unit)
        assert profile.link_bandwidth == pytest.approx(float(row["link_gbs_per_dir"]) * 1e9)
        assert profile.n_sm == int(row["n_sm"])
        assert profile.tdp_w == (float(row["tdp_w"]) if row["tdp_w"] else None)
        assert profile.boost_hz == (float(row["boost_mhz"]) * 1e6 if row["boost_mhz"] else None)
        for dtype, column in [("bf16", "bf16_tflops"), ("fp8", "fp8_tflops"), ("fp4", "fp4_tflops")]:
            expected = float(row[column]) * 1e12 if row[column] else None
            assert profile.peak_flops.get(dtype) == (pytest.approx(expected) if expected else None)
        if row["checked"] == "no":
            assert not any(sourced.checked for name, sourced in sourced_fields(profile.datasheet).items()
                           if name != "usable_memory")  # fmt: skip


def test_attributes_are_si_and_one_direction():
    h100 = load_device("h100_sxm")
    assert h100.hbm_bandwidth == 3.35e12
    assert h100.hbm_bytes == 80 * 10**9
    assert h100.usable_bytes == pytest.approx(79.19 * GIB, abs=1)
    assert h100.peak_flops["bf16"] == 989.4e12
    assert (h100.n_sm, h100.l2_bytes, h100.smem_bytes_per_sm) == (132, 50 * 2**20, 228 * 2**10)
    assert (h100.boost_hz, h100.tdp_w) == (1.98e9, 700)
    assert (h100.link_type, h100.link_bandwidth, h100.pcie_bandwidth) == ("NVLink4", 450e9, 63e9)
    assert h100.whatif is False


@pytest.mark.parametrize(
    ("device", "gib"),
    [("rtx_4090", 23.52), ("l40s", 44.39), ("a100_sxm_80gb", 79.25), ("h200_sxm", 139.8), ("mi300x", 191.98)],
)
def test_usable_memory_is_what_the_driver_reports_not_what_is_sold(device, gib):
    assert load_device(device).usable_bytes / GIB == pytest.approx(gib, abs=0.006)


def test_a_tpu_has_the_three_parameter_form_and_no_tile_parameters_for_its_matrices():
    tpu = load_device("tpu_v6e")
    assert tpu.form == "roofline3"
    assert set(tpu.lane("gemm").params) == {"t0_us", "ec", "eb"}
    assert load_device("tpu_v5e").lane("gemm").device == "tpu_v6e"


@pytest.mark.parametrize("device", CALIBRATED)
@pytest.mark.parametrize("family", ["gemm", "decode_attention", "prefill_attention", "allreduce"])
@pytest.mark.parametrize("software", ["vllm", "sglang", "trtllm"])
def test_calibrated_devices_have_a_fitted_lane_of_every_engine_with_its_spread(device, family, software):
    lane = load_device(device).lane(family, software)
    assert (lane.lane, lane.level, lane.device) == (software, "measured", device)
    assert "ai-dynamo/aiconfigurator@095f58a5" in lane.source
    assert lane.residual
    assert all(0.0 < sd < 1.0 for sd in lane.residual.values())
    assert lane.hull
    assert lane.correlation is not None
    assert len(lane.correlation) == len(lane.params)


@pytest.mark.parametrize("device", CALIBRATED)
def test_fitted_shares_are_of_what_the_datasheet_gives(device):
    gemm = load_device(device).lane("gemm").params
    assert 0.5 < gemm["ec"] < 1.05
    assert 0.7 < gemm["eb"] < 1.0


@pytest.mark.parametrize(("device", "base"), [("h200_sxm", "h100_sxm"), ("b300_sxm", "b200_sxm")])
@pytest.mark.parametrize("software", ["vllm", "sglang", "trtllm"])
def test_a_relative_borrows_the_lane_of_the_same_engine(device, base, software):
    lane = load_device(device).lane("decode_attention", software)
    assert (lane.lane, lane.device) == (software, base)
    assert lane.level.startswith("transferred")


def test_all_reduce_has_a_measured_table_where_the_link_is_the_same():
    table = load_device("h100_sxm").lane("allreduce").table
    assert table is not None
    assert set(table.latency_us) == {2, 4, 8}
    sizes, latencies = table.series(8)
    assert len(sizes) == len(latencies) >= 20
    assert latencies[-1] > 100 * latencies[0]
    assert load_device("h200_sxm").lane("allreduce").table == table
    assert load_device("gb200").lane("allreduce").table is not None


@pytest.mark.parametrize(("name", "ratio"), [("h100_pcie", 0.5), ("a10", 1.0), ("rtx_pro_6000_server", 0.5)])
def test_behind_pcie_all_reduces_are_those_measured_over_pcie_at_its_rate(name: str, ratio: float) -> None:
    """Its relative's NVLink says nothing of it; a chain of relatives stretches the table once."""
    borrowed, measured = (load_device(which).lane("allreduce") for which in (name, "l40s"))
    assert borrowed.device == "l40s"
    assert borrowed.level.startswith("transferred")
    assert borrowed.table is not None
    assert measured.table is not None
    for size in (0, -1):
        fixed = min(measured.table.series(4)[1])
        expected = fixed + ratio * (measured.table.series(4)[1][size] - fixed)
        assert borrowed.table.series(4)[1][size] == pytest.approx(expected)


def test_eager_launches_cost_more_than_graph_ones():
    h100 = load_device("h100_sxm")
    graph, eager = (h100.lane("allreduce", lane).table for lane in ("vllm", "vllm_eager"))
    assert graph is not None
    assert eager is not None
    assert eager.series(2)[1][0] > 2 * graph.series(2)[1][0]


def test_share_of_peak_belongs_to_the_card_not_to_its_architecture():
    ada = {device: load_device(device).lane("gemm") for device in ("rtx_4090", "l40s")}
    assert ada["rtx_4090"].device == "rtx_4090"
    assert ada["rtx_4090"].params["ec"] > 1.3 * ada["l40s"].params["ec"]


def test_a_missing_software_lane_falls_back_to_another_of_the_same_device_first():
    a100 = load_device("a100_sxm_80gb")
    lane = a100.lane("moe", "vllm")
    assert (lane.lane, lane.device, lane.level) == ("trtllm", "a100_sxm_80gb", "measured")
    assert a100.lane("linear_fp8").level == "transferred_cross_arch"


@pytest.mark.parametrize("device", list_devices())
def test_families_read_off_a_relatives_text_are_those_of_its_whole_file(device):
    def whole(profile):
        relative = load_device(profile.transfer_from) if profile.transfer_from else None
        lent = whole(relative) if relative is not None and relative.form == profile.form else []
        return sorted({*profile.fitted, *lent})

    assert load_device(device).families() == whole(load_device(device))


def test_a_family_that_nobody_has_is_known_without_reading_a_relatives_file(monkeypatch):
    profile = load_device("a100_sxm_80gb")
    monkeypatch.setattr("membound.hwmodels.device.load_device", pytest.fail)
    with pytest.raises(CatalogError):
        profile.lane("mixed_attention")


def test_an_unknown_family_is_one_line_with_the_nearest():
    with pytest.raises(CatalogError) as caught:
        load_device("rtx_4090").lane("gem")
    assert "nearest: 'gemm'" in str(caught.value)
    assert "\n" not in str(caught.value)


# --- what-if


def test_a_what_if_changes_the_named_values_and_labels_its_lanes_transferred():
    device = load_device(
        {"base": "h100_sxm", "hbm_bandwidth": "x1.5", "hbm_capacity": "192GB", "peak_flops.bf16": "x1.2",
         "link_bandwidth": "900GB/s", "n_sm": 144, "l2_bytes": "100MiB"}
    )  # fmt: skip
    base = load_device("h100_sxm")
    assert device.hbm_bandwidth == pytest.approx(5.025e12)
    assert device.hbm_bytes == 192 * 10**9
    assert device.usable_bytes == pytest.approx(base.usable_bytes * 2.4, rel=1e-9)
    assert device.peak_flops["bf16"] == pytest.approx(1.2 * 989.4e12)
    assert device.peak_flops["fp8"] == base.peak_flops["fp8"]
    assert (device.link_bandwidth, device.n_sm, device.l2_bytes) == (900e9, 144, 100 * 2**20)
    assert device.whatif
    assert device.lane("gemm").level == "transferred_same_arch"
    assert device.lane("gemm").params == base.lane("gemm").params
    assert device.lane("allreduce").table is None, "a table measured on another link does not apply"
    assert device.digest != base.digest


def test_a_what_if_on_the_memory_alone_keeps_the_measured_all_reduce():
    device = load_device({"base": "h100_sxm", "hbm_bandwidth": "x2"})
    assert device.lane("allreduce").table is not None


def test_a_what_if_without_changes_is_the_device_itself():
    assert load_device({"base": "h100_sxm"}) == load_device("h100_sxm")
    same = load_device({"base": "h100_sxm", "hbm_capacity": "80GB", "hbm_bandwidth": "x1"})
    assert same.usable_bytes == load_device("h100_sxm").usable_bytes


def test_usable_memory_can_be_set_beside_the_capacity():
    device = load_device({"base": "l40s", "hbm_capacity": "96GB", "usable_memory": "90GiB"})
    assert (device.hbm_bytes, device.usable_bytes) == (96 * 10**9, 90 * GIB)


def test_a_factor_on_peak_flops_multiplies_every_dtype():
    device, base = load_device({"base": "b200_sxm", "peak_flops": "x2"}), load_device("b200_sxm")
    assert device.peak_flops == pytest.approx({dtype: 2 * rate for dtype, rate in base.peak_flops.items()})
    nested = load_device({"base": "b200_sxm", "peak_flops": {"bf16": "3PFLOP/s"}})
    assert nested.peak_flops["bf16"] == 3e15


@pytest.mark.parametrize("base", ["h100_sxm", "l40s", "mi355x", "tpu_v6e"])
def test_every_number_of_a_datasheet_can_be_scaled(base):
    before = sourced_fields(load_device(base).datasheet)
    for name, sourced in before.items():
        if name == "hbm_type":
            continue
        after = sourced_fields(load_device({"base": base, name: "x2"}).datasheet)
        assert after[name].value == pytest.approx(2 * sourced.value, rel=1e-6)
        assert (after[name].source, after[name].checked) == (f"what-if {name}: x2", False)
        follow = {name, "usable_memory"} if name == "hbm_capacity" else {name}
        assert {other for other in after if after[other] != before[other]} == follow


def test_a_what_if_can_give_a_device_what_it_lacks():
    given = {"base": "h100_sxm", "peak_flops.fp4": "4PFLOP/s", "hbm_type": "HBM4", "link.type": "NVLink5"}
    device = load_device(given)
    assert device.peak_flops["fp4"] == 4e15
    assert (device.datasheet.hbm_type.value, device.link_type) == ("HBM4", "NVLink5")
    cached = load_device({"base": "tpu_v6e", "l2": "32MiB", "boost": "1.7GHz"})
    assert (cached.l2_bytes, cached.boost_hz) == (32 * 2**20, 1.7e9)
    assert pickle.loads(pickle.dumps(device)) == device


@given(st.floats(0.1, 20))
@settings(deadline=None, max_examples=30)
def test_a_factor_scales_capacity_and_usable_memory_alike(factor):
    base = load_device("a100_sxm_80gb")
    device = load_device({"base": base.id, "hbm_capacity": f"x{factor}"})
    assert device.hbm_bytes == pytest.approx(base.hbm_bytes * factor, rel=1e-6)
    assert device.usable_bytes / device.hbm_bytes == pytest.approx(
        base.usable_bytes / base.hbm_bytes, rel=1e-6
    )


@pytest.mark.parametrize(
    ("spec", "error", "hint"),
    [
        ({"base": "h100_sxm", "hbm_bandwith": "x2"}, CatalogError, "nearest: 'hbm_bandwidth'"),
        (
            {"base": "h100_sxm", "peak_flops.fp4": "x2"},
            CatalogError,
            "of what the base lacks; give it a value",
        ),
        ({"base": "h100_sxm", "peak_flops.fp5": "x2"}, CatalogError, "nearest: 'peak_flops.f"),
        ({"base": "h100_sxm", "link.bandwith": "x2"}, CatalogError, "nearest: 'link.bandwidth'"),
        ({"base": "h100_sxm", "hbm_type": 4}, CatalogError, "is no name"),
        ({"base": "h100_sxm", "peak_flops": "900TFLOP/s"}, CatalogError, "name a dtype"),
        ({"base": "h100_sxm", "hbm_bandwidth": 0}, CatalogError, "above 0"),
        ({"base": "h100_sxm", "hbm_bandwidth": "fast"}, UnitError, "not a rate"),
        ({"base": "h100_sxm", "hbm_capacity": "192G"}, UnitError, "ambiguous"),
        ({"hbm_bandwidth": "x2"}, CatalogError, "needs 'base'"),
        ({"base": "h10_sxm"}, CatalogError, "nearest: 'h100_sxm'"),
    ],
)
def test_a_wrong_what_if_is_one_line(spec, error, hint):
    with pytest.raises(error) as caught:
        load_device(spec)
    assert hint in str(caught.value)
    assert "\n" not in str(caught.value)


# --- files


def test_a_device_is_one_yaml_anywhere(tmp_path):
    text = (DEVICES / "l40s.yaml").read_text().replace("id: l40s", "id: my_card").replace("864GB/s", "1TB/s")
    (tmp_path / "my.yaml").write_text(text)
    mine = load_device("my.yaml", relative_to=tmp_path)
    assert (mine.id, mine.hbm_bandwidth) == ("my_card", 1e12)
    assert mine.lane("gemm").device == "my_card"
    assert mine.price_usd_per_hour is None


@pytest.mark.parametrize(
    ("old", "new", "hint"),
    [
        ("864GB/s", "864G", "datasheet.hbm_bandwidth.value"),
        ("form: tiles", "form: hexagons", "form"),
        ("vendor:", "seller:", "vendor"),
        ("stderr: ", "stddev: ", "stderr"),
    ],
)
def test_a_malformed_device_file_is_named_with_the_key_in_one_line(tmp_path, old, new, hint):
    (tmp_path / "my.yaml").write_text((DEVICES / "l40s.yaml").read_text().replace(old, new))
    with pytest.raises(CatalogError) as caught:
        load_device(tmp_path / "my.yaml")
    assert hint in str(caught.value)
    assert "my.yaml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_profiles_are_frozen():
    with pytest.raises(ValueError, match="frozen"):
        load_device("h100_sxm").id = "other"


def test_list_prices_are_dated_offers_of_devices_that_exist():
    for device, known in offers().items():
        profile = load_device(device)
        assert profile.id == device
        assert profile.price in known
        assert all(price.dated and price.source and price.provider for price in known)
    assert load_device("h100_sxm").price_usd_per_hour == 2.95
    assert load_device("tpu_v5e").price_usd_per_hour is None


# --- the lint itself

BROKEN = [
    ("hbm_bandwidth.value", "3350MB/s", "hbm_bandwidth"),
    ("hbm_capacity.value", 80, "hbm_capacity"),
    ("usable_memory.value", "60GiB", "usable_memory is 0.75"),
    ("usable_memory.value", "90GiB", "usable_memory is 1.12"),
    ("peak_flops.bf16.value", "1979TFLOP/s", "FLOP per unit and clock"),
    ("peak_flops.fp8.value", "3958TFLOP/s", "peak_flops.fp8 is 4.00 x bf16"),
    ("peak_flops.int8.value", "3958TFLOP/s", "peak_flops.int8 is 4.00 x bf16"),
    ("peak_flops.tf32.value", "989TFLOP/s", "peak_flops.tf32 is 1.00 x bf16"),
    ("link.bandwidth.value", "900GB/s", "both directions?"),
    ("link.type", "NVLink44", "link type 'NVLink44'"),
    ("boost.value", "1980kHz", "boost"),
    ("tdp.value", "7W", "tdp"),
    ("l2.value", "50kB", "l2"),
    ("pcie.value", "504GB/s", "pcie"),
    ("n_sm.value", 16896, "n_sm"),
    ("hbm_bandwidth.source", "", "hbm_bandwidth has no source"),
    ("n_sm.checked", True, "n_sm is marked checked"),
]


def broken(path: str, value: object, section: str = "datasheet") -> DeviceProfile:
    """Return the H100's profile with one leaf replaced."""
    data = read_yaml(DEVICES / "h100_sxm.yaml", "device")
    node = data[section]
    *parents, leaf = path.split(".")
    for part in parents:
        node = node[part]
    if value is None:
        del node[leaf]
    else:
        node[leaf] = value
    return DeviceProfile.model_validate(data)


@pytest.mark.parametrize(("path", "value", "finding"), BROKEN)
def test_the_lint_finds(path, value, finding):
    assert any(finding in line for line in lint(broken(path, value)))


def test_the_lint_finds_an_implausible_ridge_point_and_a_missing_dtype():
    assert any("ridge point" in line for line in lint(broken("hbm_bandwidth.value", "25TB/s")))
    assert any("bf16 is missing" in line for line in lint(broken("peak_flops.bf16", None)))


@pytest.mark.parametrize(("symbol", "value"), [("ec", 86), ("eb", 0.0), ("t0_us", -1.0)])
def test_the_lint_finds_a_share_that_is_none_and_a_negative_time(symbol, value):
    found = lint(broken(f"gemm.vllm.parameters.{symbol}.value", value, "fitted"))
    assert any(f"fitted.gemm.vllm.{symbol}" in line for line in found)


def test_the_lint_finds_a_device_without_any_lane():
    bare = load_device("h100_sxm").model_copy(update={"fitted": {}, "transfer_from": None})
    assert any("neither fitted lanes nor transfer_from" in line for line in lint(bare))


@pytest.mark.parametrize(("family", "n"), [("allreduce", 22), ("gemm", 3)])
def test_a_table_or_correlation_of_the_wrong_size_is_refused(family, n):
    section = "table" if family == "allreduce" else "correlation"
    value = (
        {"sizes": list(range(1, 24)), "latency_us": {2: [1.0] * n}} if section == "table" else [[1.0] * n] * n
    )
    with pytest.raises(ValueError, match=r"values for 23 sizes|correlation must be"):
        broken(f"{family}.vllm.{section}", value, "fitted")
